"""Linears: every variant gives the same bits, the choice of variants, and what parameters are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import llmc.runtime.cuda.plan as plan
from llmc.codegen.cuda.arguments import Input, Output, StepArray
from llmc.codegen.cuda.linear.cost import cost
from llmc.codegen.cuda.linear.epilogue import write_epilogue
from llmc.codegen.cuda.linear.params import (
    COUNTERS,
    PARTIALS,
    CountedBy,
    LinearParams,
    LinearShape,
    LinearTile,
    LinearWgmmaParams,
    Slices,
)
from llmc.codegen.cuda.linear.variants import (
    BUCKETS,
    MANY_TOKENS,
    candidates,
    choose_slice,
    tile_name,
    variants,
)
from llmc.codegen.cuda.plan.launches import ChosenKernels
from llmc.codegen.cuda.target.gpus import GPUS
from llmc.emulator.build import HostCompiler
from llmc.emulator.session import Mode, Schedule
from llmc.ir.dims import sym
from llmc.ir.formats import Scheme
from llmc.ir.graph import Graph, IRError, Value
from llmc.ir.ops.kernel import PackedLinear
from llmc.ir.types import DType, tensor
from tests.cuda.harness import Lab
from tests.cuda.kernels.linear_cases import CASES, LinearData, epilogue, launch
from tests.cuda.kernels.linear_shapes import S, mma, wgmma

# Of the 300 tokens, how many are there: around every tile's edge.
COUNTS = (1, 2, 7, 8, 9, 15, 17, 31, 33, 63, 64, 65, 100, 127, 129, 200, 255, 256, 257, 299, 300)
SIZES = [("llama", 4096, 4096), ("smol", 576, 576), ("down", 576, 1536), ("odd", 1001, 579), ("head", 49152, 576)]


def _tiles(kind: str) -> Iterator[LinearParams]:
    for slices in Slices:
        for out in (64, 128):
            for tokens in (8, 16, 32, 64, 128, 256):
                if kind == "mma" and tokens <= 128:
                    yield mma("plain", 70, 330, 128, out, tokens, slices, 3)
                if kind == "wgmma" and (tokens <= 128 or slices is Slices.PARALLEL):
                    yield wgmma("plain", 70, 330, 128, out, tokens, slices, 3)


@pytest.mark.parametrize("kind", ["mma", "wgmma"])
def test_every_variant_gives_the_same_bits(lab: Lab, kind: str) -> None:
    """Tokens 1 to 300 alone in a launch's tail or among others, three slices of K of which the last is short. The
    bits are those of the first variant in a checked twin, which takes every instruction by itself."""
    fast = dataclasses.replace(lab, checked=False, _kernels={}, _arrays=[], _inputs=[])
    base: np.ndarray | None = None
    for p in _tiles(kind):
        data = LinearData.make(p, CASES["plain"], 300, np.random.default_rng(5))
        for i, count in enumerate(COUNTS):
            mode = (Mode.FORWARD, Mode.REVERSE, Mode.RANDOM)[i % 3]
            with fast.case(Schedule(mode, i + 1)):
                got = launch(fast, p, data, count, count)[:, : p.shape.width].view(np.uint32)
            if base is None:
                with lab.case(Schedule(Mode.FORWARD)):
                    base = launch(lab, p, data, 300, 300)[:, : p.shape.width].view(np.uint32)
            different = np.argwhere(got != base[:count])
            assert not len(different), f"{p.label}, {count} tokens: first difference at {different[0]}"


@pytest.mark.parametrize("make", [mma, wgmma], ids=["mma", "wgmma"])
@pytest.mark.parametrize("case", ["gated_residual", "bf16_residual"])
def test_both_compilers_make_twins_of_the_same_bits(lab: Lab, make: Callable[..., LinearParams], case: str) -> None:
    """Three slices of K joined, tails in every dimension, an epilogue with an exponential and one that rounds."""
    results = []
    for compiler in (HostCompiler.gxx(), HostCompiler.zig()):
        fast = dataclasses.replace(lab, compiler=compiler, checked=False, _kernels={}, _arrays=[], _inputs=[])
        for slices in Slices:
            p = make(case, 70, 330, 128, 64, 16, slices, 3)
            data = LinearData.make(p, CASES[case], 21, np.random.default_rng(7))
            with fast.case(Schedule(Mode.RANDOM, 3)):
                results.append(launch(fast, p, data, 21, 24)[:21, :70].tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("gpu", sorted(GPUS))
@pytest.mark.parametrize(("case", "n", "k"), [("plain", n, k) for _, n, k in SIZES] + [("swiglu", 1536, 576)])
def test_variants_of_a_linear(gpu: str, case: str, n: int, k: int) -> None:
    """Buckets up to any number of tokens, one sum behind all of them, each fit for the target and with its reasons."""
    target = GPUS[gpu]
    found = variants(CASES[case].op(n), n, k, target)
    assert [v.up_to for v in found] == [b for b in BUCKETS if b in {v.up_to for v in found}] and found[-1].up_to is None
    assert len({(v.params.shape, type(v.params)) for v in found}) == 1
    assert isinstance(found[0].params, LinearWgmmaParams) == target.has("wgmma")
    for v in found:
        assert v.params.rejects(target) is None
        assert tile_name(v.params) not in v.rejected
        tokens = v.up_to or MANY_TOKENS
        best = cost(v.params, tokens, target)
        assert v.why == str(best) and "predicted" in v.why
        others = candidates(v.params.shape, v.params.epilogue, v.params.counted, v.up_to, target)
        for other in (p for p in others if p != v.params):
            expected = other.rejects(target) or str(cost(other, tokens, target))
            assert v.rejected[tile_name(other)] == expected
            assert other.rejects(target) or cost(other, tokens, target).seconds >= best.seconds - 1e-8
        assert v.params.workspace_bytes(64) == 0 or v.up_to is not None


def test_the_cut_of_k_spreads_a_decode_step() -> None:
    """SmolLM2's down projection is nine tiles of 64 channels, of 132 multiprocessors; its head needs no help."""
    h100 = GPUS["h100"]
    found = variants(CASES["plain"].op(576), 576, 1536, h100)
    assert found[0].params.is_split and np.prod(found[0].params.grid(1)) >= 36
    assert not found[-1].params.is_split
    assert choose_slice(49152, 576, False, h100) == 576


def test_the_cut_depends_on_n_k_and_target_alone() -> None:
    for case in ("plain", "bias_residual", "bf16"):
        found = variants(CASES[case].op(576), 576, 1536, GPUS["a100"], CountedBy.ROWS)
        assert {v.params.shape.slice_k for v in found} == {choose_slice(576, 1536, False, GPUS["a100"])}


def test_arguments_in_order() -> None:
    p = mma("bias_residual", 70, 330, 128, 64, 8, Slices.PARALLEL, 3)
    operands = [a.operand for a in p.arguments]
    assert operands == [Input(0), Input(1), StepArray("counts"), Input(2), Input(3), Output(), PARTIALS, COUNTERS]
    assert (p.grid(9), p.num_counters(9)) == ((2, 2, 3), 4)
    kernels = ChosenKernels()
    scratch = kernels.scratch([kernels.add(p)])
    assert scratch == (plan.Scratch("linear_partials", zeroed=False), plan.Scratch("linear_counters", zeroed=True))
    assert p.workspace_bytes(9) == 4 * 3 * 64 * 8 * 4
    q = wgmma("plain", 70, 330, 128, 64, 8, S, 3)
    boxes = [a.box for a in q.arguments if a.box]
    assert [(b.rows, b.columns, b.box_rows, b.box_columns) for b in boxes] == [(None, 330, 8, 64), (70, 330, 64, 64)]
    assert q.workspace_bytes(9) == q.num_counters(9) == 0


def test_illegal_parameters_are_refused() -> None:
    p = mma("plain", 70, 330, 128, 64, 8, S, 3)
    for change, message in (
        ({"stages": 1}, "stages 1"),
        ({"warps_out": 3}, "3 warps"),
        ({"warps_tokens": 2}, "8 tokens do not divide"),
        ({"tile": LinearTile(64, 256, S)}, "256 is more than 128"),
        ({"shape": dataclasses.replace(p.shape, width=71)}, "the epilogue's"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(p, **change)
    with pytest.raises(ValueError, match="256 registers of sums and totals"):
        wgmma("plain", 70, 330, 128, 64, 256, S, 3)
    with pytest.raises(ValueError, match="f32 is not bf16 or f16"):
        LinearShape(DType.F32, 64, 64, 64)
    with pytest.raises(ValueError, match="slice_k 96"):
        LinearShape(DType.BF16, 64, 64, 96)
    with pytest.raises(ValueError, match="tokens 24"):
        LinearTile(64, 24, S)


def test_what_no_kernel_computes_is_refused_by_name() -> None:
    op = dataclasses.replace(CASES["plain"].op(64), scheme=Scheme.INT8)
    with pytest.raises(IRError, match="scheme int8"):
        variants(op, 64, 64, GPUS["h100"])


def test_an_epilogue_reads_like_what_it_computes() -> None:
    assert epilogue("wide_residual", 70).source.splitlines() == [
        "struct Epilogue {",
        "  const bf16* extra_0;  // bf16[T, 70]",
        "  const float* extra_1;  // f32[70]",
        "  float* out;  // f32[T, 70]",
        "  static constexpr bool kGated = false;",
        "  static constexpr int kWidth = 70, kVector = 4;",
        "",
        "  // Columns col .. col+V-1 of one row; a: the sums.",
        "  template <int V>",
        "  LLMC_DEVICE void finish(int row, int col, const float (&a)[V], const float (&b)[V]) const {",
        "    float x0[V], x1[V], result[V];",
        "    load_columns(x0, row_at(extra_0, row, 144) + col);",
        "    load_columns(x1, extra_1 + col);",
        "    LLMC_UNROLL",
        "    for (int i = 0; i < V; i++) {",
        "      const float v0 = (a[i] * x1[i]);",
        "      const float v1 = x0[i];",
        "      const float v2 = (v0 + v1);",
        "      result[i] = v2;",
        "    }",
        "    store_columns(row_at(out, row, 288) + col, result);",
        "  }",
        "};",
    ]


def test_epilogues_that_no_kernel_stores_are_refused() -> None:
    y, mask = Value(tensor(DType.F32, sym("T"), 64), "y"), Value(tensor(DType.BOOL, sym("T"), 64), "mask")
    with pytest.raises(IRError, match="%mask of bool"):
        write_epilogue(PackedLinear(Scheme.BF16, Graph("epilogue", (y, mask), (y,), ())))
    with pytest.raises(IRError, match="2 results"):
        write_epilogue(PackedLinear(Scheme.BF16, Graph("epilogue", (y,), (y, y), ())))
