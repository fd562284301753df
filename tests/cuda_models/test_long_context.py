"""8,192 tokens in chunks of 512: as the CPU computes them, and window layers keep their window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cuda_models.emulated import ids_of
from cuda_models.emulation import Emulation
from e2e.engines import Engines

from llmc.codegen.kv_groups import BLOCK_TOKENS
from llmc.ir.formats import Scheme
from llmc.runtime import Engine

WINDOW, CHUNK = 96, 512


@pytest.mark.parametrize("length", [1100, pytest.param(8192, marks=pytest.mark.soak)])
def test_a_long_prompt(length: int, engines: Engines, tmp_path: Path) -> None:
    _, folder = engines.model("gemma3", sliding_window=WINDOW, max_position_embeddings=8704)
    engine = engines.engine(folder, Scheme.BF16, target="h100,cpu", max_batch=1, step_tokens=CHUNK)
    Emulation().run("long_context.py", engine, tmp_path / "out.npz", str(length), engine=engine)
    found = np.load(tmp_path / "out.npz")
    with Engine.load(engine, device="cpu", max_rows=4) as cpu:
        expected = cpu.logits(ids_of(length, 97, 1), rows=list(range(length - 4, length)))
    error = np.linalg.norm(found["logits"] - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert error.max() <= 2.0**-6, error
    whole, window = found["held"].max(0)
    assert whole >= length // BLOCK_TOKENS
    assert window <= -(-(WINDOW + CHUNK) // BLOCK_TOKENS) + 1
    assert found["held"][-1][1] <= -(-WINDOW // BLOCK_TOKENS) + 1  # once decoding, the window alone
