"""Floors, and the expected times on GPUs, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmc.codegen.cpu.measured_limits import MeasuredLimits, read_limits
from llmc.codegen.cpu.target import TargetError, find_cpu
from llmc.codegen.cuda.attention.cost import Rates, attention_work, workspace_bytes
from llmc.codegen.cuda.attention.layer import Layer
from llmc.codegen.cuda.attention.params import CombineAttentionParams, DecodeAttentionParams, PrefillAttentionParams
from llmc.codegen.cuda.cost.launches import BlockWork, LaunchWork, launch_seconds, makespan, resident
from llmc.codegen.cuda.cost.roofline import Launched, machine
from llmc.codegen.cuda.linear.cost import cost
from llmc.codegen.cuda.linear.variants import variants
from llmc.codegen.cuda.plan.storage import CudaStorage
from llmc.codegen.cuda.target.assumptions import ASSUMED
from llmc.codegen.cuda.target.gpus import GPUS, Gpu
from llmc.codegen.roofline import Bound, Floor, Machine, Peaks, floor
from llmc.codegen.work import Costing, Step, Unit, Work, kernels, visible
from llmc.compiler.targets.cpu import CpuBackend
from llmc.compiler.targets.cuda import CudaBackend
from llmc.compiler.targets.limits import check_limits
from llmc.ir.graph import Graph
from llmc.ir.ops.attention import Mask
from llmc.ir.ops.kernel import PackedLinear
from llmc.ir.parser import parse
from llmc.ir.types import DType

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
    """Equal blocks go round by round; others to the multiprocessor that is free first."""
    assert makespan([(132, 2.0)], 132) == 2 and makespan([(133, 2.0)], 132) == 4 and makespan([(1, 2.0)], 132) == 2
    assert makespan([(1, 3.0), (1, 2.0), (2, 1.0)], 2) == 4  # 3 and 1 on one, 2 and 1 on the other
    assert makespan([(4, 1.0), (1, 4.0)], 2) == 6  # the longest starts last
    assert makespan([(1, 4.0), (4, 1.0)], 2) == 4  # and first


def test_a_launch_is_bound_by_its_busiest_multiprocessor_or_by_the_memory() -> None:
    def seconds(count: int, memory: float, l2: float, arithmetic: float, asked: float, per_sm: int = 1) -> float:
        return launch_seconds(LaunchWork(((count, BlockWork(memory, l2, arithmetic)),), asked), per_sm, H100)

    many = 1e9
    assert seconds(1, 28 * 1.7e3, 0, 0, many) == pytest.approx(1e-6)  # 28 bytes a clock
    assert seconds(133, 0, 48 * 1.7e3, 0, many) == pytest.approx(2e-6)  # 48 bytes a clock, two rounds
    assert seconds(1, 8000, 0, 0, 800) == pytest.approx(8e-6)  # ten times 800 bytes, each a latency away
    assert seconds(264, 8000, 0, 0, 800, per_sm=2) == pytest.approx(8e-6)  # a neighbour asks as well
    assert seconds(264, 8000, 0, 0, 800, per_sm=1) == pytest.approx(16e-6)
    assert seconds(132, 28 * 1.7e3, 0, 3e-6, many) == pytest.approx(3e-6)
    assert seconds(1320, 1e6, 0, 0, many) == pytest.approx(1320e6 / (3.35e12 * 0.9))
    assert launch_seconds(LaunchWork((), 0), 1, H100) == 0


LAYER = Layer(DType.BF16, 8, 2, 128, 128, 128)
PREFILL, DECODE = PrefillAttentionParams(LAYER, DType.BF16), DecodeAttentionParams(LAYER)
COMBINE = CombineAttentionParams(LAYER, DType.BF16)
UNBOUND = Rates(1e18, 1e18)


def test_blocks_on_a_multiprocessor() -> None:
    """By shared memory, registers, or threads, whatever is used up first."""
    assert resident(DECODE, H100) == 3 and DECODE.smem_bytes > 64 << 10
    assert resident(DECODE, A100) == 2 and resident(DECODE, GPUS["l40s"]) == 1
    assert resident(PREFILL, H100) == 2  # 255 registers, 128 threads
    assert resident(COMBINE, H100) == 12 and resident(COMBINE, GPUS["l40s"]) == 12


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
            found = Launched(entry, gpu).estimate(node, costing.work(node, step), step)
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
    assert floor(work, machine(H100)) is not None and Launched(entry, H100).estimate(node, work, Step(1, 1, 0)) is None


MASKS = pytest.mark.parametrize("mask", [Mask(), Mask(window=100), Mask(chunk=96)], ids=["causal", "window", "chunk"])


@MASKS
@pytest.mark.parametrize("new, past", [(64, 0), (128, 0), (100, 0), (70, 333), (2, 500)])
@pytest.mark.parametrize("seqs", [1, 3])
def test_tiles_cover_all_scores(mask: Mask, new: int, past: int, seqs: int) -> None:
    """Of every KV head, with the keys of whole cache blocks; 16 tokens of 4 heads to a tile."""
    scores, keys = visible(mask, new, past)
    step = Step(seqs, new, past)
    rates = Rates(2 * (128 + 128), 1e18)  # a score a second
    work = attention_work(PREFILL, mask, step, H100, rates, 0)
    assert work.blocks == 2 * -(-step.tokens // 16)
    computed = sum(count * b.arithmetic for count, b in work.runs)
    assert computed % (64 * 32) == 0 and computed >= scores * seqs * 8
    assert sum(count * b.memory for count, b in work.runs) == pytest.approx(2 * seqs * keys * 512)
    assert all(b.l2 >= 0 for _, b in work.runs)
    rows = H100.l2_bytes + 1
    far = attention_work(PREFILL, mask, step, H100, rates, rows)
    assert sum(count * b.memory for count, b in far.runs) == pytest.approx(2 * seqs * keys * 512 + rows)
    lengths = [b.arithmetic for _, b in work.runs[: work.blocks // 2]]
    assert seqs > 1 or mask != Mask() or lengths == sorted(lengths, reverse=True)
    assert attention_work(DECODE, mask, step, H100, UNBOUND, 0).blocks == 0
    assert attention_work(COMBINE, mask, step, H100, UNBOUND, 0).blocks == 0


@MASKS
@pytest.mark.parametrize("past", [0, 127, 128, 500, 1000])
def test_splits_cover_all_keys(mask: Mask, past: int) -> None:
    step = Step(3, 1, past)
    _, keys = visible(mask, 1, past)
    first = past + 1 - keys
    splits = past // 128 - first // 128 + 1
    work = attention_work(DECODE, mask, step, H100, UNBOUND, 0)
    assert work.blocks == 3 * 2 * splits
    assert sum(count * b.memory for count, b in work.runs) == 3 * 2 * keys * 512
    left = sum(count * (b.l2 - 4 * 128 * 2) for count, b in work.runs)
    assert left == workspace_bytes(LAYER, mask, step) == 3 * 8 * splits * (4 + 128) * 4
    joined = attention_work(COMBINE, mask, step, H100, UNBOUND, 0)
    assert joined.blocks == 3 * 8
    assert sum(count * (b.l2 - 128 * 2) for count, b in joined.runs) == left
    single = PrefillAttentionParams(LAYER, DType.BF16, min_tokens=2)
    assert attention_work(single, mask, step, H100, UNBOUND, 0).blocks == 0  # beside decode it leaves them alone


def test_results_that_l2_does_not_hold_cross_the_bus() -> None:
    """As the floor counts them: in a narrow window they are most of what moves."""
    entry, step = graph(window=64), Step(1, 20000, 0)
    node = next(n for n in kernels(entry) if n.op.mnemonic() == "paged_attention")
    work = Costing.of(entry, CudaStorage()).work(node, step)
    assert work.activations > H100.l2_bytes and work.activations > 2 * work.kv
    least, found = floor(work, machine(H100)), Launched(entry, H100).estimate(node, work, step)
    assert least is not None and least.bound is Bound.MEMORY
    assert found is not None and found.seconds > least.seconds / 0.9


def test_a_workspace_that_l2_does_not_hold_crosses_the_bus() -> None:
    step = Step(2000, 1, 1000)
    assert workspace_bytes(LAYER, Mask(), step) > H100.l2_bytes
    work = attention_work(DECODE, Mask(), step, H100, UNBOUND, 0)
    moved = 2000 * 2 * 1001 * 512 + workspace_bytes(LAYER, Mask(), step)
    assert sum(count * b.memory for count, b in work.runs) == moved
    joined = attention_work(COMBINE, Mask(), step, H100, UNBOUND, 0)
    assert sum(count * b.memory for count, b in joined.runs) == workspace_bytes(LAYER, Mask(), step)


def graph(entry: str = "prefill", window: int | None = None) -> Graph:
    """A linear, a row kernel with a cache write, attention, a head and sampling."""
    mask = "" if window is None else f", mask=Mask{{window={window}}}"
    text = """graph ENTRY {
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
  %z = paged_attention{slot=0, scale=0.1, num_kv_heads=2, value_dim=128MASK}(
    %kv1, %q, %positions, %seqs) : f32[T, 8, 128]
  %logits = packed_linear{scheme=bf16, epilogue=graph epilogue {
    inputs %r: f32[T, 5000]
    outputs %r
  }}(%x, %h) : f32[T, 5000]
  %ids = sample{num_valid_tokens=5000}(%logits) : i32[T]
  outputs %ids, %z, %kv1
}
"""
    return parse(text.replace("ENTRY", entry).replace("MASK", mask))


STEPS = [
    Step(1, 1, 0),
    Step(1, 1, 5000),
    Step(9, 1, 700),
    Step(200, 1, 33),
    Step(1, 64, 0),
    Step(2, 700, 100),
    Step(2, 9000, 0),
]


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda g: g.name)
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_nothing_is_expected_below_its_floor(gpu: Gpu, step: Step) -> None:
    entry = graph()
    costing, launched = Costing.of(entry, CudaStorage()), Launched(entry, gpu)
    for node in kernels(entry):
        work = costing.work(node, step)
        least, expected = floor(work, machine(gpu)), launched.estimate(node, work, step)
        assert least is not None and expected is not None
        assert expected.seconds > least.seconds > 0


def test_an_estimate_in_full() -> None:
    """Decode attention of 2 sequences with 1001 keys: 2 x 2 heads x 8 splits on 108 SMs, joined by a second kernel of
    2 x 8 heads; in a mixed step prefill is launched, too, and finds nothing."""
    step = Step(2, 1, 1000)
    split = 128 * 512 / (28 * 1.7e9) + (4 * 128 * 2 + 4 * 528) / (48 * 1.7e9)
    join = (8 * 528 + 128 * 4) / (128 * 4 * 4 / 4e-7)
    for gpu, gap in ((A100, 1.3e-6), (H100, 0.7e-6)):  # H100 has programmatic dependent launch
        for name, launches in (("decode", 2), ("prefill", 3)):
            entry = graph(name)
            node = next(n for n in kernels(entry) if n.op.mnemonic() == "paged_attention")
            work = Costing.of(entry, CudaStorage()).work(node, step)
            assert work.num_bytes == 2 * 1001 * 2 * 256 * 2 + 2 * (8 * 128 * 2 + 8 * 128 * 4) + 2 * 2 * 4
            found = Launched(entry, gpu).estimate(node, work, step)
            assert found is not None and found.launches == launches
            assert found.note == "decode 32 blocks, combine 16 blocks, 67584 B between them"
            assert found.seconds == pytest.approx(launches * gap + 2 * 0.7e-6 + split + join)


def test_rows_are_a_block_each() -> None:
    """What fits L2 is read there. A row of logits is asked for at once, and one block lives on a multiprocessor: 300 of
    them are three latencies one after the other."""
    entry, step = graph(), Step(300, 1, 0)
    costing = Costing.of(entry, CudaStorage())
    node = next(n for n in kernels(entry) if n.op.mnemonic() == "sample")
    work = costing.work(node, step)
    found = Launched(entry, H100).estimate(node, work, step)
    assert found is not None and found.launches == 1 and found.note == "300 blocks"
    assert found.seconds == pytest.approx(0.7e-6 + 0.7e-6 + 3 * 4e-7)
    assert work.num_bytes == 300 * (5000 * 4 + 4)


def test_assumptions_are_fractions_and_microseconds() -> None:
    for name, value in vars(ASSUMED).items():
        if name.startswith("gap") or name == "ramp" or name.endswith("latency"):
            assert 1e-7 < value < 1e-5, name
        elif name.startswith("sm_"):
            assert 1 < value <= 64, name
        else:
            assert 0 < value < 1 or name == "clock", name


def test_limits_of_a_cpu(tmp_path: Path) -> None:
    target = find_cpu("x86-64-v3")
    other = find_cpu("x86-64-v4")
    assert target is not None and other is not None
    limits = MeasuredLimits(target.mcpu, 2, 17e9, Peaks(f32=2e11, bf16=3e11))
    path = tmp_path / "limits.json"
    path.write_text(limits.to_json())
    assert read_limits(path) == limits
    assert CpuBackend(target).machine(limits) == Machine(17e9, target.l2_bytes, limits.peaks)
    assert CpuBackend(other).machine(limits) is None and CpuBackend(target).machine(None) is None
    assert CudaBackend(A100).machine(limits) == machine(A100)
    check_limits(limits, [CpuBackend(other), CpuBackend(target)])
    with pytest.raises(
        TargetError, match=r"measured on x86_64_v3, which is none of the targets: x86-64-v4 \(.*, a100 \(.*A100"
    ):
        check_limits(limits, [CpuBackend(other), CudaBackend(A100)])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "mcpu": "x"}'])
def test_other_files_are_no_limits(text: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    path.write_text(text)
    with pytest.raises(TargetError, match=r"limits.json: not what bench/cpu/limits.py --json writes"):
        read_limits(path)
