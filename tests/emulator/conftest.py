"""One emulator per test process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from llmc.emulator.session import Emulator

pytest.importorskip("cuda.bindings", reason="needs the extra `cuda`: pip install llmc[cuda]")


@pytest.fixture(scope="session")
def emulator() -> Emulator:
    from llmc.emulator.session import Emulator

    return Emulator()


@pytest.fixture(autouse=True)
def fresh(emulator: Emulator) -> Iterator[None]:
    """Each test begins without an error, in the forward schedule, with copies watched by the race detector."""
    from llmc.emulator.session import Mode, Schedule

    emulator.reset()
    emulator.set_checked(True)
    emulator.set_schedule(Schedule(Mode.FORWARD))
    yield
    emulator.reset()
