"""The engine of a tiny model that benches are run with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.conftest import speaking
from tests.e2e.engines import Engines
from tests.e2e.shared_engines import engines

__all__ = ["engines", "speaking"]


@pytest.fixture(scope="session")
def patient_engine(engines: Engines, speaking: Path) -> Path:
    """Of the speaking model, with positions for answers that are still under way when a bench ends them."""
    folder = engines.root / "patient"
    with engines.once(folder) as missing:
        if missing:
            shutil.copytree(speaking, folder)
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    return engines.engine(folder)
