"""Engines of tiny models, built through the whole driver, once for all workers of a test run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.commands import Commands
from e2e.engines import Engines
from transformers.utils import logging

logging.disable_progress_bar()


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Engines:
    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "engines"
    root.mkdir(exist_ok=True)
    return Engines(root)


@pytest.fixture(scope="session")
def llmc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """llmc.run("build", folder, ...): the command line, without the seconds of imports before each."""
    with Commands(tmp_path_factory.mktemp("commands")) as commands:
        yield commands
