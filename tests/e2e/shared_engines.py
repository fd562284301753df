"""The fixture of engines that all workers of a test run share."""

from __future__ import annotations

import pytest

from tests.e2e.engines import Engines


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Engines:
    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "engines"
    root.mkdir(exist_ok=True)
    return Engines(root)
