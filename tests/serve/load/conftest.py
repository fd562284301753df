"""Engines that answer without a model: those of the runtime's tests."""

from tests.runtime.conftest import build_reference, cxx, reference_library, shared_engine

__all__ = ["build_reference", "cxx", "reference_library", "shared_engine"]
