"""A pass preserves meaning: graphs of known models and of random layers, before and after each pass of the pipeline."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmc.ir.formats import Scheme
from llmc.ir.graph import Graph
from llmc.ir.reference import Cache, run
from llmc.passes.gates import FuseGates
from llmc.passes.linears import FuseLinears
from llmc.passes.pipeline import default_pipeline, run_pipeline
from llmc.passes.raise_norms import RaiseNorms
from llmc.passes.raise_rope import RaiseRope
from llmc.passes.rewrite import RuleLog

from .captured import gemma, gpt2, llama, read
from .random_layers import models

BATCH, SEQ = 2, 7
RANDOM = np.random.default_rng(5)
IDS = RANDOM.integers(0, 90, (BATCH, SEQ))
POSITIONS = np.broadcast_to(np.arange(SEQ), (BATCH, SEQ))
ROWS = np.array([0, 3, 6, 8, 13], np.int32)


def outputs(graph: Graph) -> np.ndarray:
    """Logits [tokens, V] of a graph at any level, in float64; only those of ROWS once a graph has the input."""
    flat = {"ids": IDS.reshape(-1), "positions": POSITIONS.reshape(-1), "seqs": np.repeat(np.arange(BATCH), SEQ)}
    given = {name: values.astype(np.int32) for name, values in flat.items()} | {"rows": ROWS, "kv": Cache()}
    if graph.input("ids").tensor.rank == 2:
        given = {"ids": IDS, "positions": POSITIONS}
    with np.errstate(all="ignore"):
        logits = np.asarray(run(graph, given, read, wide=True)[0])
    return logits.reshape(-1, logits.shape[-1])


def check(graph: Graph, scheme: Scheme = Scheme.F32) -> RuleLog:
    """Every graph of the pipeline gives the captured graph's logits."""
    pipeline, log = default_pipeline(scheme, 80), RuleLog()
    expected = outputs(graph)
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=1e-3)

    def compare(name: str, after: Graph) -> None:
        sampled = any(v.name == "rows" for v in after.inputs)
        found = outputs(after)
        want = expected[ROWS] if sampled else expected
        assert np.allclose(found, want, rtol=1e-4, atol=1e-5 * scale, equal_nan=True), name

    run_pipeline(graph, pipeline, log, compare)
    return log


@pytest.mark.parametrize(
    ("model", "rules"),
    [
        (llama, {"rms-norm": 5, "half-rope": 4, "fuse-gates": 2, "fuse-linears": 2, "share-tied-head": 1}),
        (lambda: llama(1, True), {"interleaved-rope": 2, "rms-norm": 3, "cos-table": 1, "sin-table": 1}),
        (lambda: llama(1, False, 8), {"partial-rope": 2, "half-rope": 2}),
        (lambda: llama(1, True, 8), {"partial-rope": 2, "interleaved-rope": 2}),
        (gpt2, {"constant-matmul": 8, "add-bias": 8, "slice-of-linear": 6, "fuse-linears": 2}),
        (gemma, {"rms-norm": 13, "scaled-rms-norm": 13, "fuse-gates": 2, "partial-rope": 4, "kv-layout": 2}),
    ],
    ids=["llama", "interleaved", "partial", "partial interleaved", "gpt2", "gemma"],
)
def test_models(model: Callable[[], Graph], rules: dict[str, int]) -> None:
    log = check(model())
    entries = 2  # rules after the entries part run once for each
    for name, times in rules.items():
        per_entry = name.startswith(("fuse-", "share-", "kv-"))
        assert log.applied[name] == times * (entries if per_entry else 1), name


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(models())
def test_random_layers(graph: Graph) -> None:
    check(graph)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(models(), st.data())
def test_passes_can_be_left_out(graph: Graph, data: st.DataObject) -> None:
    """What only makes a graph faster is not needed for its meaning."""
    optional = (RaiseNorms, RaiseRope, FuseGates, FuseLinears)
    dropped = {p for p in optional if data.draw(st.booleans())}
    pipeline = default_pipeline(Scheme.F32, 80).each(lambda step: None if type(step) in dropped else step)
    expected = outputs(graph)
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=1e-3)
    prefill, _ = run_pipeline(graph, pipeline, RuleLog(), lambda *_: None)
    assert np.allclose(outputs(prefill), expected[ROWS], rtol=1e-4, atol=1e-5 * scale, equal_nan=True)
