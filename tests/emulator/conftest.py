"""One emulator per test process; the helpers in this folder are importable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

pytest.importorskip("cuda.bindings", reason="needs the extra `cuda`: pip install llmc[cuda]")


@pytest.fixture(scope="session")
def emulator():  # type: ignore[no-untyped-def]
    from llmc.emulator.session import Emulator

    return Emulator()
