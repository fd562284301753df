"""Floors, and the expected times on GPUs, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmc.codegen.cpu.measured_limits import MeasuredLimits, read_limits
from llmc.codegen.cpu.target import TargetError, find_cpu
from llmc.codegen.cuda.gpus import GPUS, Gpu
from llmc.codegen.cuda.linear import variants
from llmc.codegen.cuda.linear_cost import cost
from llmc.codegen.cuda.roofline import (
    ASSUMED,
    estimate,
    fill,
    machine,
    memory_time,
    tiled_scores,
)
from llmc.codegen.cuda.storage import CudaStorage
from llmc.codegen.roofline import Bound, Floor, Machine, Peaks, floor
from llmc.codegen.work import Costing, Step, Unit, Work, kernels, visible
from llmc.compiler.ir.graph import Graph
from llmc.compiler.ir.ops.attention import Mask
from llmc.compiler.ir.ops.kernel import PackedLinear
from llmc.compiler.ir.parser import parse

H100, A100 = GPUS["h100"], GPUS["a100"]
SIMPLE = Machine(bandwidth=1e12, cache_bytes=1000, peaks=Peaks(f32=1e13, bf16=1e14))


@pytest.mark.parametrize(
    "work, expected",
    [
        (Work(weights=4_000_000), Floor(4e-6, Bound.MEMORY)),
        (Work(weights=1_000_000, kv_reads=2_000_000, kv_writes=1_000_000), Floor(4e-6, Bound.MEMORY)),
        (Work(weights=1_000_000, reads=400, writes=600), Floor(1e-6, Bound.MEMORY)),  # they stay in the cache
        (Work(weights=1_000_000, reads=400, writes=601), Floor(1.001001e-6, Bound.MEMORY)),
        (Work(weights=1_000_000, matrix_flops=200_000_000, matrix_unit=Unit.BF16), Floor(2e-6, Bound.MATRIX)),
        (Work(weights=1_000_000, vector_flops=30_000_000), Floor(3e-6, Bound.VECTOR)),
        (Work(), Floor(0.0, Bound.MEMORY)),
    ],
)
def test_floor(work: Work, expected: Floor) -> None:
    found = floor(work, SIMPLE)
    assert found is not None
    assert found.seconds == pytest.approx(expected.seconds, rel=1e-9, abs=0) and found.bound is expected.bound


def test_no_floor_for_arithmetic_of_unknown_rate() -> None:
    assert floor(Work(weights=1, matrix_flops=1, matrix_unit=Unit.E4M3), SIMPLE) is None
    assert floor(Work(weights=1, matrix_flops=0, matrix_unit=Unit.E4M3), SIMPLE) is not None


def test_waves() -> None:
    assert fill(132, H100) == 1 and fill(264, H100) == 1
    assert fill(66, H100) == 0.5
    assert fill(133, H100) == 133 / 264
    # half of the SMs saturate the memory; one alone draws two shares of it
    assert memory_time(3.35e12, 132, H100) == pytest.approx(1 / 0.9)
    assert memory_time(3.35e12, 66, H100) == pytest.approx(1 / 0.9)
    assert memory_time(3.35e12, 33, H100) == pytest.approx(2)
    assert memory_time(3.35e12, 1, H100) == pytest.approx(66)


def test_a_linear_is_as_its_choice_sees_it() -> None:
    """The kernel that a build takes for this many rows, at the cost it was chosen by; products at 70 % of that rate."""
    entry = graph()
    node = next(n for n in kernels(entry) if n.op.mnemonic() == "packed_linear")
    assert isinstance(node.op, PackedLinear)
    costing = Costing.of(entry, CudaStorage())
    for gpu, gap in ((H100, 0.7e-6), (A100, 1.3e-6)):
        chosen = variants(node.op, 1536, 256, gpu)
        for step in (Step(1, 1, 0), Step(64, 1, 0), Step(3, 1000, 0)):
            params = next(v.params for v in chosen if v.up_to is None or step.tokens <= v.up_to)
            at = cost(params, step.tokens, gpu)
            slower = max(at.load, at.multiply / 0.7) - max(at.load, at.multiply)
            found = estimate(node, costing.work(node, step), step, gpu)
            assert found is not None and found.launches == 1
            assert found.seconds == pytest.approx(gap + at.seconds + slower)
            assert f"{at.blocks} block" in found.note


def test_no_expectation_where_there_is_no_kernel() -> None:
    entry = parse(
        """graph decode {
  dims T in [1, inf]
  inputs %x: f32[T, 64]
  %w = weight{expr=Source{name="w", dtype=f32, shape=[32, 64]}}() : f32[32, 64]
  %y = packed_linear{scheme=f32, epilogue=graph epilogue {
    inputs %r: f32[T, 32]
    outputs %r
  }}(%x, %w) : f32[T, 32]
  outputs %y
}
"""
    )
    (node,) = kernels(entry)
    work = Costing.of(entry, CudaStorage()).work(node, Step(1, 1, 0))
    assert floor(work, machine(H100)) is not None and estimate(node, work, Step(1, 1, 0), H100) is None


@pytest.mark.parametrize("mask", [Mask(), Mask(window=100), Mask(chunk=96)], ids=["causal", "window", "chunk"])
@pytest.mark.parametrize("new, past", [(64, 0), (128, 0), (100, 0), (70, 333), (1, 500)])
def test_tiles_cover_all_scores(mask: Mask, new: int, past: int) -> None:
    scores, _ = visible(mask, new, past)
    tiles = tiled_scores(mask, Step(1, new, past))
    assert tiles % (64 * 64) == 0 and tiles >= scores
    assert tiled_scores(Mask(), Step(1, 128, 0)) == 64 * 64 + 64 * 128


def graph() -> Graph:
    """A linear, a row kernel with a cache write, attention, a head and sampling."""
    return parse("""graph prefill {
  dims R in [1, inf], T in [1, inf]
  inputs %x: bf16[T, 256], %positions: i32[T], %seqs: i32[T], %kv: kv
  %w = weight{expr=Source{name="w", dtype=bf16, shape=[1536, 256]}}() : bf16[1536, 256]
  %h = weight{expr=Source{name="h", dtype=bf16, shape=[5000, 256]}}() : bf16[5000, 256]
  %y = packed_linear{scheme=bf16, epilogue=graph epilogue {
    inputs %r: f32[T, 1536]
    outputs %r
  }}(%x, %w) : f32[T, 1536]
  %q, %kv1 = rows{body=graph rows {
    inputs %a: f32[T, 1536], %p: i32[T], %s: i32[T], %kv0: kv
    %b = slice{axis=1, start=0, stop=1024}(%a) : f32[T, 1024]
    %c = cast{dtype=bf16}(%b) : bf16[T, 1024]
    %q0 = view{shape=[T, 8, 128]}(%c) : bf16[T, 8, 128]
    %d = slice{axis=1, start=1024, stop=1280}(%a) : f32[T, 256]
    %k = view{shape=[T, 2, 128]}(%d) : f32[T, 2, 128]
    %kv2 = kv_write{slot=0, dtype=bf16}(%kv0, %k, %k, %p, %s) : kv
    outputs %q0, %kv2
  }}(%y, %positions, %seqs, %kv) : bf16[T, 8, 128], kv
  %z = paged_attention{slot=0, scale=0.1, num_kv_heads=2, value_dim=128}(%kv1, %q, %positions, %seqs) : f32[T, 8, 128]
  %logits = packed_linear{scheme=bf16, epilogue=graph epilogue {
    inputs %r: f32[T, 5000]
    outputs %r
  }}(%x, %h) : f32[T, 5000]
  %ids = sample{num_valid_tokens=5000}(%logits) : i32[T]
  outputs %ids, %z, %kv1
}
""")


STEPS = [Step(1, 1, 0), Step(1, 1, 5000), Step(9, 1, 700), Step(200, 1, 33), Step(1, 64, 0), Step(2, 700, 100)]


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda g: g.name)
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_nothing_is_expected_below_its_floor(gpu: Gpu, step: Step) -> None:
    entry = graph()
    costing = Costing.of(entry, CudaStorage())
    for node in kernels(entry):
        work = costing.work(node, step)
        least, expected = floor(work, machine(gpu)), estimate(node, work, step, gpu)
        assert least is not None and expected is not None
        assert expected.seconds > least.seconds > 0


def test_an_estimate_in_full() -> None:
    """Decode attention of 2 sequences with 1001 keys: 2 x 2 heads x 8 blocks on 108 SMs, joined by a second kernel."""
    entry, step = graph(), Step(2, 1, 1000)
    node = next(n for n in kernels(entry) if n.op.mnemonic() == "paged_attention")
    work = Costing.of(entry, CudaStorage()).work(node, step)
    moved = 2 * 1001 * 2 * 256 * 2 + 2 * (8 * 128 * 2 + 8 * 128 * 4) + 2 * 2 * 4
    assert work.num_bytes == moved
    found = estimate(node, work, step, A100)
    assert found is not None and found.launches == 2 and found.note == "32 blocks"
    assert found.seconds == pytest.approx(2 * 1.3e-6 + 0.7e-6 + moved / (2.039e12 * 2 * 32 / 108))
    hopper = estimate(node, work, step, H100)  # has programmatic dependent launch
    assert hopper is not None
    assert hopper.seconds == pytest.approx(2 * 0.7e-6 + 0.7e-6 + moved / (3.35e12 * 2 * 32 / 132))


def test_assumptions_are_fractions_and_microseconds() -> None:
    for name, value in vars(ASSUMED).items():
        if name.startswith("gap") or name == "ramp":
            assert 1e-7 < value < 1e-5, name
        elif name != "sm_share":
            assert 0 < value < 1, name


def test_limits_of_a_cpu(tmp_path: Path) -> None:
    target = find_cpu("x86-64-v3")
    other = find_cpu("x86-64-v4")
    assert target is not None and other is not None
    limits = MeasuredLimits(target.mcpu, 2, 17e9, Peaks(f32=2e11, bf16=3e11))
    path = tmp_path / "limits.json"
    path.write_text(limits.to_json())
    assert read_limits(path) == limits
    assert limits.machine(target) == Machine(17e9, target.l2_bytes, limits.peaks)
    assert limits.machine(other) is None
    limits.check([other, target])
    with pytest.raises(
        TargetError, match=r"measured on x86_64_v3, which is none of the targets: x86-64-v4 \(.*, sm_80"
    ):
        limits.check([other, A100])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "mcpu": "x"}'])
def test_other_files_are_no_limits(text: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    path.write_text(text)
    with pytest.raises(TargetError, match=r"limits.json: not what bench/cpu/limits.py --json writes"):
        read_limits(path)
