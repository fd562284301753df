"""The reference: a model's kernel-level graph for GPUs, run by the interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmc.compiler.capture.capture import capture
from llmc.compiler.sources.resolve import open_source
from llmc.ir.formats import Scheme, WeightLayout
from llmc.ir.reference import Cache, run
from llmc.passes.pipeline import default_pipeline, run_pipeline
from llmc.passes.rewrite import RuleLog


def interpreted(folder: Path, ids: list[int], scheme: Scheme) -> NDArray[np.float32]:
    """Logits [positions, vocab] of one sequence; weights, operands and the cache rounded as the scheme says."""
    captured = capture(open_source(str(folder)))
    vocab = int(captured.graph.outputs[0].tensor.shape[-1])  # type: ignore[arg-type]
    pipeline = default_pipeline(scheme, vocab, WeightLayout.ROWS)
    prefill, _ = run_pipeline(captured.graph, pipeline, RuleLog(), lambda *_: None)

    positions = np.arange(len(ids), dtype=np.int32)
    inputs = {
        "ids": np.asarray(ids, np.int32),
        "positions": positions,
        "seqs": np.zeros(len(ids), np.int32),
        "rows": positions,
        "kv": Cache(),
    }
    logits = run(prefill, inputs, captured.read)[0]
    return np.asarray(logits, np.float32)
