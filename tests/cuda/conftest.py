"""One emulator per test process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cuda.harness import Lab

pytest.importorskip("cuda.bindings", reason="needs the extra `cuda`: pip install llmc[cuda]")


@pytest.fixture(scope="session")
def lab() -> Lab:
    from tests.cuda.harness import Lab

    return Lab()
