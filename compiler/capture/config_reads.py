"""Which attributes of its config a model's code reads while it is built and traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from transformers import PretrainedConfig


@contextmanager
def recorded_reads() -> Iterator[set[tuple[str, str]]]:
    """Fills the set with (class of the config, attribute) of every read meanwhile."""
    reads: set[tuple[str, str]] = set()
    original = PretrainedConfig.__getattribute__

    def recording(config: PretrainedConfig, name: str) -> Any:
        reads.add((type(config).__name__, name))
        return original(config, name)  # type: ignore[no-untyped-call]

    with patch.object(PretrainedConfig, "__getattribute__", recording):
        yield reads
