"""Attention as one canonical computation: a query row has the same bits in a prefill tile with others, in any chunks,
and alone in decode with its splits in parallel. And the pool is addressed in 64 bits."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest

from llmc.codegen.cuda.arguments import Number, Whole
from llmc.codegen.cuda.attention.forms import attention_forms, numbers_of
from llmc.codegen.cuda.attention.layer import SPLITS_SCRATCH, Layer
from llmc.codegen.cuda.attention.params import PrefillAttentionParams
from llmc.codegen.cuda.plan.kv import CudaKvSlot
from llmc.codegen.cuda.target.capabilities import TARGETS
from llmc.emulator.session import THREE_SCHEDULES, Mode, Schedule
from llmc.ir.dims import sym
from llmc.ir.graph import IRError
from llmc.ir.ops.attention import Mask, PagedAttention
from llmc.ir.types import DType, TensorType, tensor
from llmc.runtime.cuda import plan
from tests.cuda.harness import Lab
from tests.cuda.kernels.attention_cases import SOFTCAP, OnDevice, Step, compare_step
from tests.cuda.kernels.attention_shapes import LAYERS

Array = np.ndarray


@dataclass(frozen=True)
class Sequence:
    """A whole sequence: queries, keys and values of every position."""

    step: Step

    def __len__(self) -> int:
        return len(self.step.keys[0])


def part_of(sequences: list[Sequence], spans: list[tuple[int, int]]) -> Step:
    """The step that runs positions [begin, end) of each sequence, in company."""
    first = sequences[0].step
    return dataclasses.replace(
        first,
        contexts=tuple(end for _, end in spans),
        rows=tuple(end - begin for begin, end in spans),
        q=np.concatenate([s.step.q[begin:end] for s, (begin, end) in zip(sequences, spans, strict=True)]),
        keys=[s.step.keys[0][:end] for s, (_, end) in zip(sequences, spans, strict=True)],
        values=[s.step.values[0][:end] for s, (_, end) in zip(sequences, spans, strict=True)],
    )


def bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.uint8).reshape(len(x), -1)


@pytest.fixture(scope="session")
def fast(lab: Lab) -> Lab:
    """Unchecked twins on all cores: many runs of the same kernels."""
    return dataclasses.replace(lab, checked=False, _kernels={}, _arrays=[], _inputs=[])


def run(lab: Lab, step: Step, seed: int, form: str, result: DType) -> Array:
    rng = np.random.default_rng(seed)
    with lab.case(Schedule(Mode.RANDOM, seed)):
        on_device = OnDevice.put(lab, step, rng)
        if form == "prefill":
            return on_device.prefill(lab, result)
        out = on_device.result(lab, result)
        if form == "mixed":
            on_device.prefill(lab, result, 2, out)
        return on_device.decode(lab, result, out)


@pytest.mark.parametrize("name", LAYERS)
def test_bits_do_not_depend_on_form_chunks_or_company(fast: Lab, name: str) -> None:
    layer = LAYERS[name]
    rng = np.random.default_rng(len(name))
    lengths = (2 * layer.split + 5, 70, 33)
    sequences = [Sequence(Step.make(layer, (n,), (n,), rng)) for n in lengths]
    sequences = [
        dataclasses.replace(s, step=dataclasses.replace(s.step, sinks=sequences[0].step.sinks)) for s in sequences
    ]
    result = DType.F32 if layer.dtype is DType.BF16 else DType.F16  # f32 hides no bit
    whole = [run(fast, part_of([s], [(0, len(s))]), 1, "prefill", result) for s in sequences]
    for s, rows in zip(sequences, whole, strict=True):
        compare_step(name, s.step, rows, result)
    want = [bits(rows) for rows in whole]

    # Random chunks of all sequences side by side: through prefill, and through whichever form takes each sequence.
    for seed, form in ((2, "prefill"), (3, "mixed")):
        chunks = np.random.default_rng(seed)
        done = [0, 0, 0]
        while any(d < n for d, n in zip(done, lengths, strict=True)):
            most = int(chunks.choice([1, 3, 40, 100]))
            ends = [min(n, d + int(chunks.integers(0, most + 1))) for d, n in zip(done, lengths, strict=True)]
            if ends == done:
                continue
            spans = list(zip(done, ends, strict=True))
            got = bits(run(fast, part_of(sequences, spans), seed, form, result))
            expected = np.concatenate([w[begin:end] for w, (begin, end) in zip(want, spans, strict=True)])
            assert np.array_equal(got, expected), (form, spans)
            done = ends

    # Alone in decode, at positions around blocks and splits.
    edges = {0, 1, 31, 32, layer.split - 1, layer.split, 2 * layer.split, lengths[0] - 1}
    for position in sorted(edges):
        step = part_of([sequences[0]], [(position, position + 1)])
        assert np.array_equal(bits(run(fast, step, 4, "decode", result)), want[0][position : position + 1]), position


@pytest.mark.parametrize("form", ["prefill", "decode"])
def test_a_pool_beyond_2_31_bytes(lab: Lab, form: str) -> None:
    """Blocks lie 9 GiB behind the pool's start."""
    layer = Layer(DType.BF16, 2, 1, 64, 64, 64)
    for schedule in THREE_SCHEDULES:
        rng = np.random.default_rng(5)
        step = Step.make(layer, (70, 5), (1, 1), rng)
        with lab.case(schedule):
            on_device = OnDevice.put(lab, step, rng, first_block=(9 << 30) // layer.slot.num_bytes)
            got = on_device.prefill(lab, DType.F32) if form == "prefill" else on_device.decode(lab, DType.F32)
        compare_step(form, step, got, DType.F32)


def paged(layer: Layer, result: DType, scale: float) -> tuple[PagedAttention, TensorType]:
    """The op that `layer` runs, and its queries' type."""
    mask = Mask(layer.window or None, layer.chunk or None)
    softcap = SOFTCAP if layer.softcap else None
    op = PagedAttention(0, scale, layer.kv_heads, layer.value_dim, mask, softcap, layer.sinks, result, joined=True)
    return op, tensor(layer.dtype, sym("T"), layer.q_heads, layer.head_dim)


@pytest.mark.parametrize("form", ["prefill", "decode", "mixed"])
@pytest.mark.parametrize("name", ["uneven", "gemma", "chunked", "sinking"])
def test_forms_of_an_op_compute_it(fast: Lab, name: str, form: str) -> None:
    """By nothing but the kernels, grids and numbers that codegen gives, against the op in float64."""
    layer, result = LAYERS[name], DType.BF16
    rng = np.random.default_rng(7)
    rows = (1, 1) if form == "decode" else (1, 12)
    step = Step.make(layer, (130, 40), rows, rng)
    op, q = paged(layer, result, step.scale)
    forms = attention_forms(op, q, layer.slot, TARGETS["sm_90a"])
    with fast.case(THREE_SCHEDULES[0]):
        on_device = OnDevice.put(fast, step, rng)
        on_device.operands |= {Number(n): value for n, value in numbers_of(op).items()}
        chosen = forms.decode[0].layer  # its splits may be others than those of `layer`
        on_device.operands[SPLITS_SCRATCH] = fast.empty((chosen.scratch.at(step.sizes) // 4,), np.float32)
        on_device.operands[Whole(chosen.seen_splits)] = chosen.seen_splits.at(step.sizes)
        out = on_device.result(fast, result)
        for params in {"prefill": forms.prefill, "decode": forms.decode, "mixed": forms.mixed}[form]:
            on_device.launch(fast, params)
        compare_step(form, step, out.numpy(), result)


def test_an_op_that_no_kernel_runs_is_refused() -> None:
    op, q = paged(Layer(DType.BF16, 2, 1, 64, 64, 64), DType.F32, 0.125)
    slot = CudaKvSlot(1, 64, 64, DType.BF16, 0)

    def forms(op: PagedAttention, q: TensorType, slot: CudaKvSlot = slot) -> None:
        attention_forms(op, q, slot, TARGETS["sm_80"])

    forms(op, q)
    with pytest.raises(IRError, match=r"its slot is .*expected heads, dims and dtype"):
        forms(op, q, CudaKvSlot(2, 64, 64, DType.BF16, 0))
    with pytest.raises(IRError, match="head_dim 60 is not a multiple of 8"):
        forms(op, tensor(DType.BF16, sym("T"), 2, 60), CudaKvSlot(1, 60, 64, DType.BF16, 0))
    with pytest.raises(IRError, match=r"scale -1\.0 is not positive"):
        forms(dataclasses.replace(op, scale=-1.0), q)
    with pytest.raises(ValueError, match="min_tokens 3"):
        PrefillAttentionParams(LAYERS["wide"], DType.F32, 3)
    with pytest.raises(ValueError, match="7 query heads do not divide over 2"):
        Layer(DType.BF16, 7, 2, 64, 64, 64)
    with pytest.raises(ValueError, match="cache in f32"):
        CudaKvSlot(1, 64, 64, DType.F32, 0)


def test_scratch_is_bounded_by_what_a_window_sees() -> None:
    sizes = plan.Sizes(4, 4, 4, 10_000)
    free, window = (Layer(DType.BF16, 8, 2, 64, 64, 64, window=w) for w in (0, 130))
    assert free.scratch.at(sizes) == 4 * 157 * 8 * (4 + 64) * 4
    assert window.scratch.at(sizes) == 4 * 4 * 8 * (4 + 64) * 4
    for position in range(2000):  # the bound holds, and is met
        first = max(0, position - 129)
        assert position // 64 - first // 64 + 1 <= window.seen_splits.at(sizes)
    assert max(p // 64 - max(0, p - 129) // 64 + 1 for p in range(2000)) == window.seen_splits.at(sizes)
