"""What a request has come to."""

from __future__ import annotations

from llmc.runtime import RequestHandle
from llmc.runtime.loop.results import Completion


def ended(handle: RequestHandle) -> Completion:
    """Its completion, which is there without another step."""
    assert handle.completion is not None
    return handle.completion
