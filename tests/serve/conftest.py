"""A tiny real engine for the server's tests: the reference device of the runtime's."""

from __future__ import annotations

from tests.runtime.conftest import build_reference, cxx, reference_library, shared_engine

__all__ = ["build_reference", "cxx", "reference_library", "shared_engine"]
