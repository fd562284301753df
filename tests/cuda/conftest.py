"""One emulator per test process; `harness` and `references` are importable from this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest.importorskip("cuda.bindings", reason="needs the extra `cuda`: pip install llmc[cuda]")


@pytest.fixture(scope="session")
def lab():  # type: ignore[no-untyped-def]
    from harness import Lab

    return Lab()
