"""Every edge of a model's plans is needed: left out, the race detector reports the two launches it ordered."""

from __future__ import annotations

import json

import pytest
from cuda_models.emulation import Emulation
from e2e.engines import Engines

from llmc.ir.formats import Scheme


@pytest.mark.parametrize("schedule", ["forward", pytest.param("random:7", marks=pytest.mark.soak)])
def test_every_missing_edge_is_reported(schedule: str, engines: Engines) -> None:
    _, folder = engines.model("llama")
    engine = engines.engine(folder, Scheme.BF16, target="h100", max_batch=4, step_tokens=16)
    printed = Emulation(checked=True, schedule=schedule).run("edges.py", engine, engine=engine)
    edges = [json.loads(line) for line in printed.splitlines()]
    assert len(edges) >= 2 * 18  # two layers of nine launches, in each entry
    unseen = [e for e in edges if not e["report"] or not ("race" in e["report"] or "uninitialised" in e["report"])]
    assert not unseen
    print(f"{len(edges)} edges left out, {len(edges) - len(unseen)} reported")
