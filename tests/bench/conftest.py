"""The engine of a tiny model that benches are run with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import speaking
from tests.e2e.engines import Engines
from tests.e2e.shared_engines import engines

__all__ = ["engines", "speaking"]


@pytest.fixture(scope="session")
def speaking_engine(engines: Engines, speaking: Path) -> Path:
    return engines.engine(speaking)
