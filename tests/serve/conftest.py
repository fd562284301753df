"""A tiny real engine for the server's tests: the reference device of the runtime's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.conftest import build_reference, cxx, reference_library, shared_engine
from tests.serve.serving import Served, served

__all__ = ["build_reference", "cxx", "reference_library", "shared_engine"]


@pytest.fixture(scope="module")
def one_server(shared_engine: Path) -> Iterator[Served]:
    """A server that stays up while a module's tests ask it."""
    with served(shared_engine, "--queue", "200") as one:
        yield one
