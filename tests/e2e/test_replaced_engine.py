"""An engine that a build replaces: one process loads the old one, then, from the same path, the new one."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from llmc.runtime import Engine
from tests.e2e.engines import Engines


def test_a_process_sees_the_engine_that_is_there(engines: Engines, tmp_path: Path) -> None:
    """The same shapes with other code: the KV layouts are equal, so nothing but the answer would tell."""
    sources = [engines.model("llama")[1], engines.mutant("llama", rms_norm_eps=1e-6)]
    built = [engines.engine(source) for source in sources]
    place, ids = tmp_path / "engine", [5, 6, 7]
    expected, seen = [], []
    for folder in built:
        with Engine.load(folder, threads=1) as engine:
            expected.append(engine.logits(ids))
    shutil.copytree(built[0], place)
    with Engine.load(place, threads=1) as old:
        seen.append(old.logits(ids))
        place.rename(tmp_path / "replaced")
        shutil.copytree(built[1], place)
        with Engine.load(place, threads=1) as new:
            seen.append(new.logits(ids))
            assert np.array_equal(old.logits(ids), seen[0])
    for ours, theirs in zip(seen, expected, strict=True):
        assert np.array_equal(ours, theirs)
    assert not np.array_equal(seen[0], seen[1])
