"""Tiny models, one per thing that modeling code does differently, on emulated GPUs: against the interpreter on the same
graph, with one arithmetic for all chunks and batches, and no race."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from llmc.ir.formats import Scheme
from tests.cuda_models.emulated import ids_of
from tests.cuda_models.emulation import Emulation
from tests.cuda_models.interpreted import interpreted
from tests.e2e.engines import Engines

LENGTH = 20  # beyond every window (8)
FAMILIES = (
    *("gemma3", "granite_swa", "gpt2"),
    *(pytest.param(f, marks=pytest.mark.soak) for f in ("llama", "gemma2", "qwen3", "phi", "starcoder2", "cohere")),
    *(pytest.param(f, marks=pytest.mark.soak) for f in ("olmo2", "gpt_neox", "phi3", "stablelm", "opt")),
)
# ‖a - b‖ / ‖b‖ of a position. Both round at the same places; where sums in another order fall to the other side of a
# rounding, one step of 2^-8 (2^-11) appears, and is carried through two layers.
TOLERANCE = {Scheme.BF16: 2.0**-6, Scheme.F16: 2.0**-9}
SMALL = {"max_batch": 4, "step_tokens": 16}


def errors(found: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.floating]:
    return np.asarray(np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_on_h100(family: str, engines: Engines, tmp_path: Path) -> None:
    _, folder = engines.model(family)
    engine = engines.engine(folder, Scheme.BF16, target="h100", **SMALL)
    found = Emulation(checked=True, schedule="random:3").logits("one_arithmetic", engine, tmp_path, LENGTH)
    expected = interpreted(folder, ids_of(LENGTH, 97, 1), Scheme.BF16)
    assert errors(found, expected).max() <= TOLERANCE[Scheme.BF16]


def test_windows_under_pressure(engines: Engines, tmp_path: Path) -> None:
    """Preemption, windows, penalties and a cancelled request crossed, on a GPU whose KV pool is too small."""
    _, folder = engines.model("gemma3")
    engine = engines.engine(folder, Scheme.BF16, target="h100", **SMALL)
    assert np.isfinite(Emulation(checked=True).logits("under_pressure", engine, tmp_path)).all()


@pytest.mark.parametrize(
    ("family", "checked", "rounds"), [("gemma3", False, 12), ("gemma3", True, 2), ("qwen3", False, 12)]
)
def test_crossed_requests(family: str, checked: bool, rounds: int, engines: Engines, tmp_path: Path) -> None:
    """Bias, penalties, stops, sampling and log-probabilities at random x preemption x cancels, against each alone."""
    _, folder = engines.model(family)
    engine = engines.engine(folder, Scheme.BF16, target="h100", **SMALL)
    Emulation(checked, "random:4").logits("crossed", engine, tmp_path, 7, rounds)


def test_a_cached_prefix(engines: Engines, tmp_path: Path) -> None:
    """Blocks that are shared and blocks that are copied by the device, with windows."""
    _, folder = engines.model("gemma3")
    engine = engines.engine(folder, Scheme.BF16, target="h100", **SMALL)
    Emulation(checked=True, schedule="random:5").logits("cached", engine, tmp_path)


@pytest.mark.parametrize("family", ["gemma3", "qwen3"])
def test_preemption_by_swapping(family: str, engines: Engines, tmp_path: Path) -> None:
    """Blocks go to pinned host memory and come back, in one group and with windows."""
    _, folder = engines.model(family)
    engine = engines.engine(folder, Scheme.BF16, target="h100", **SMALL)
    Emulation(checked=family == "gemma3", schedule="random:6").logits("swapped", engine, tmp_path)


@pytest.mark.parametrize(
    ("target", "scheme"),
    [("a100", Scheme.F16), *(pytest.param(t, Scheme.BF16, marks=pytest.mark.soak) for t in ("l40s", "b200"))],
    ids=lambda x: getattr(x, "value", x),
)
def test_other_gpus(target: str, scheme: Scheme, engines: Engines, tmp_path: Path) -> None:
    """The portable kernels, and the other format."""
    _, folder = engines.model("llama")
    engine = engines.engine(folder, scheme, target=target, **SMALL)
    found = Emulation(checked=True).logits("one_arithmetic", engine, tmp_path, LENGTH, target=target)
    expected = interpreted(folder, ids_of(LENGTH, 97, 1), scheme)
    assert errors(found, expected).max() <= TOLERANCE[scheme]
