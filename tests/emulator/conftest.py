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


@pytest.fixture(autouse=True)
def fresh(emulator):  # type: ignore[no-untyped-def]
    """Each test begins without an error, in the forward schedule, with copies watched by the race
    detector."""
    from llmc.emulator.session import Mode, Schedule

    emulator.reset()
    emulator.set_checked(True)
    emulator.set_schedule(Schedule(Mode.FORWARD))
    yield
    emulator.reset()
