"""The server's tiny real engine."""

from __future__ import annotations

from tests.serve.conftest import build_reference, cxx, reference_library, shared_engine

__all__ = ["build_reference", "cxx", "reference_library", "shared_engine"]
