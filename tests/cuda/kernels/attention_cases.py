"""Paged attention under test: a step of ragged sequences over a paged pool, its meaning in float64, and the runners of
prefill, decode and combine.

What no kernel may read lies in wait: slots behind a sequence's end, other layers' slots and padding hold NaN, and block
tables name no block of the pool where no query of the step sees a key.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from ml_dtypes import bfloat16

from llmc.codegen.cuda.arguments import (
    COUNTS,
    Input,
    Number,
    Operand,
    Output,
    Part,
    Slot,
    StepArray,
    Whole,
)
from llmc.codegen.cuda.attention.layer import HEADER_FLOATS, SPLITS_SCRATCH, Layer
from llmc.codegen.cuda.attention.params import CombineAttentionParams, DecodeAttentionParams, PrefillAttentionParams
from llmc.codegen.cuda.plan.kv import KV_BLOCK
from llmc.emulator.session import Argument, DeviceArray
from llmc.ir.types import DType
from llmc.runtime.cuda.plan import Sizes
from tests.cuda.kernels.references import Expected, Wrong, compare, f64

if TYPE_CHECKING:
    from tests.cuda.harness import Lab, Shape

NUMPY = {DType.F32: np.dtype(np.float32), DType.BF16: np.dtype(bfloat16), DType.F16: np.dtype(np.float16)}
STEP = {DType.F32: 2.0**-20, DType.BF16: 2.0**-8, DType.F16: 2.0**-10}  # one rounding, and approximations before it
NOWHERE = 1 << 28  # a block id far outside of every pool
SOFTCAP = 20.0
BESIDE = 64  # bytes of another layer's slot, in front of the one under test
Array = np.ndarray


@dataclass(frozen=True)
class Step:
    """`contexts`: keys of each sequence, those of its `rows` newest tokens, which are the step's queries, included.
    scale: of q.k. Dense keys and values [context, heads, dim] by sequence."""

    layer: Layer
    contexts: tuple[int, ...]
    rows: tuple[int, ...]
    scale: float
    q: Array
    keys: list[Array]
    values: list[Array]
    sinks: Array
    slopes: Array

    @staticmethod
    def make(layer: Layer, contexts: tuple[int, ...], rows: tuple[int, ...], rng: np.random.Generator) -> Step:
        """Scores reach into the saturation of a softcap."""
        dtype = NUMPY[layer.dtype]

        def normal(*shape: int) -> Array:
            return rng.standard_normal(shape).astype(dtype)

        return Step(
            layer,
            contexts,
            rows,
            (4.0 if layer.softcap else 1.0) * layer.head_dim**-0.5,
            (normal(sum(rows), layer.q_heads, layer.head_dim) * (8 if layer.softcap else 1)).astype(dtype),
            [normal(n, layer.kv_heads, layer.head_dim) for n in contexts],
            [normal(n, layer.kv_heads, layer.value_dim) for n in contexts],
            rng.standard_normal(layer.q_heads).astype(np.float32) * 2,
            (0.5 ** (1 + np.arange(layer.q_heads) % 8)).astype(np.float32),
        )

    @property
    def starts(self) -> Array:
        return np.concatenate([[0], np.cumsum(self.rows)]).astype(np.int32)

    @property
    def positions(self) -> Array:
        return np.concatenate(
            [np.arange(0), *(np.arange(n - m, n) for n, m in zip(self.contexts, self.rows, strict=True))]
        ).astype(np.int32)

    @property
    def seqs(self) -> Array:
        return np.repeat(np.arange(len(self.rows)), self.rows).astype(np.int32)

    @property
    def sizes(self) -> Sizes:
        """Exactly this step's, and one block of the grid more in every direction that tokens and sequences span."""
        return Sizes(sum(self.rows) + 1, 1, len(self.rows) + 1, max(self.contexts))

    @property
    def base2(self) -> float:
        return (SOFTCAP if self.layer.softcap else self.scale) * math.log2(math.e)

    @property
    def cap(self) -> float:
        return self.scale / SOFTCAP * 2 * math.log2(math.e)

    def first_key(self, position: int) -> int:
        """The first that a query at `position` sees."""
        window = max(0, position - self.layer.window + 1) if self.layer.window else 0
        return max(window, position // self.layer.chunk * self.layer.chunk if self.layer.chunk else 0)

    def expected(self, seq: int, result: DType) -> Expected:
        """[rows, q_heads, value_dim] of one sequence. Weights are rounded to the cache's format on the way."""
        a, n, m = self.layer, self.contexts[seq], self.rows[seq]
        k, v = (np.repeat(f64(x[seq]), a.group, axis=1) for x in (self.keys, self.values))
        s = np.einsum("qhd,khd->hqk", f64(self.q[self.starts[seq] : self.starts[seq + 1]]), k) * self.scale
        if a.softcap:
            s = SOFTCAP * np.tanh(s / SOFTCAP)
        query, key = np.arange(n - m, n)[:, None], np.arange(n)[None]
        if a.alibi:
            s = s + f64(self.slopes)[:, None, None] * (key - query)
        first = np.array([self.first_key(int(i)) for i in query[:, 0]])[:, None]
        s = np.where((key <= query) & (key >= first), s, -np.inf)
        if a.sinks:
            s = np.concatenate([s, np.broadcast_to(f64(self.sinks)[:, None, None], (*s.shape[:2], 1))], -1)
        p = np.exp(s - s.max(-1, keepdims=True))
        p = (p / p.sum(-1, keepdims=True))[..., :n]
        value = np.einsum("hqk,khd->qhd", p, v)
        magnitude = np.einsum("hqk,khd->qhd", p, np.abs(v))
        return Expected(value, np.abs(value) * STEP[result] + magnitude * STEP[a.dtype])

    def pool(self, rng: np.random.Generator) -> tuple[Array, Array, int, int]:
        """The KV pool's bytes, block tables [S, stride], bytes of a block and the slot's offset."""
        slot, dtype = self.layer.slot, NUMPY[self.layer.dtype]
        stride = max(-(-n // KV_BLOCK) for n in self.contexts) + 1
        offset, block_bytes = BESIDE, BESIDE + slot.num_bytes  # nothing lies behind the last block
        blocks = sum(-(-n // KV_BLOCK) for n in self.contexts)
        shuffled = iter(rng.permutation(blocks))
        ids = np.full((len(self.contexts), stride), NOWHERE)
        for seq, n in enumerate(self.contexts):
            for b in range(-(-n // KV_BLOCK)):
                ids[seq, b] = next(shuffled)
        pool = np.full((blocks, block_bytes), 0xFF, np.uint8)  # NaN in both formats
        keys_bytes = slot.kv_heads * KV_BLOCK * slot.padded_head_dim * 2
        inside = pool[:, offset : offset + slot.num_bytes]
        for array, begin, end, dim in (
            (self.keys, 0, keys_bytes, slot.padded_head_dim),
            (self.values, keys_bytes, slot.num_bytes, slot.padded_value_dim),
        ):
            area = np.ascontiguousarray(inside[:, begin:end]).view(dtype).reshape(blocks, slot.kv_heads, KV_BLOCK, dim)
            for seq, x in enumerate(array):
                for t in range(len(x)):
                    row = area[ids[seq, t // KV_BLOCK], :, t % KV_BLOCK]
                    row[:, : x.shape[-1]], row[:, x.shape[-1] :] = x[t], 0
            inside[:, begin:end] = area.reshape(blocks, -1).view(np.uint8)
        tables = np.full_like(ids, NOWHERE)
        for seq, (n, m) in enumerate(zip(self.contexts, self.rows, strict=True)):
            if m:
                low, high = self.first_key(n - m) // KV_BLOCK, (n - 1) // KV_BLOCK + 1
                tables[seq, low:high] = ids[seq, low:high]
        return pool, tables.astype(np.int32), block_bytes, offset


@dataclass
class OnDevice:
    """A step's arrays on the device: what is passed for each operand of the kernels."""

    step: Step
    operands: dict[Operand, Argument]

    @staticmethod
    def put(lab: Lab, step: Step, rng: np.random.Generator, first_block: int = 0) -> OnDevice:
        """first_block: how many blocks of a pool lie in front of the ones there are; no memory stands behind them."""
        pool, tables, block_bytes, offset = step.pool(rng)
        blocks = lab.array(pool)
        counts = np.array([sum(step.rows), len(step.rows), 0, tables.shape[1]], np.int32)
        arrays: dict[Operand, Array] = {
            Input(1): step.q,
            COUNTS: counts,
            Slot(Part.TABLES): tables + np.where(tables == NOWHERE, 0, first_block).astype(np.int32),
            StepArray("positions"): step.positions,
            StepArray("seqs"): step.seqs,
            StepArray("seq_starts"): step.starts,
        }
        behind = [step.sinks] * step.layer.sinks + [step.slopes] * step.layer.alibi
        arrays |= {Input(4 + i): array for i, array in enumerate(behind)}
        numbers: dict[Operand, Argument] = {
            Slot(Part.POOL): struct.pack("<Q", blocks.pointer - first_block * block_bytes),
            Slot(Part.BLOCK_BYTES): struct.pack("<q", block_bytes),
            Slot(Part.OFFSET): struct.pack("<q", offset),
            Whole(step.layer.seen_splits): step.layer.seen_splits.at(step.sizes),
            Number("base2"): float(step.base2),
            Number("cap"): float(step.cap),
        }
        return OnDevice(step, {**{operand: lab.array(x) for operand, x in arrays.items()}, **numbers})

    def launch(self, lab: Lab, p: PrefillAttentionParams | DecodeAttentionParams | CombineAttentionParams) -> None:
        grid = tuple(extent.at(self.step.sizes) for extent in p.grid)
        lab.launch(p, grid, *[self.operands[argument.operand] for argument in p.arguments])

    def result(self, lab: Lab, result: DType) -> DeviceArray:
        """Room for the results: poisoned, so that an unwritten row shows."""
        a = self.step.layer
        out = lab.empty((sum(self.step.rows), a.q_heads, a.value_dim), NUMPY[result])
        self.operands[Output()] = out
        return out

    def prefill(self, lab: Lab, result: DType, min_tokens: int = 1, out: DeviceArray | None = None) -> Array:
        out = out or self.result(lab, result)
        self.launch(lab, PrefillAttentionParams(self.step.layer, result, min_tokens))
        return out.numpy()

    def decode(self, lab: Lab, result: DType, out: DeviceArray | None = None) -> Array:
        """Splits and combine, with scratch of the size that the plan would give."""
        layer = self.step.layer
        if SPLITS_SCRATCH not in self.operands:
            self.operands[SPLITS_SCRATCH] = lab.empty((layer.scratch.at(self.step.sizes) // 4,), np.float32)
        out = out or self.result(lab, result)
        self.launch(lab, DecodeAttentionParams(layer))
        self.launch(lab, CombineAttentionParams(layer, result))
        return out.numpy()


def compare_step(
    what: str, step: Step, got: Array, result: DType, min_tokens: int = 1, max_tokens: int = 1 << 30
) -> None:
    """Sequences with tokens within the limits against float64; rows of others must be untouched (0xFF)."""
    for seq, m in enumerate(step.rows):
        part = got[step.starts[seq] : step.starts[seq + 1]]
        if min_tokens <= m <= max_tokens:
            compare(f"{what}[{seq}]", part, step.expected(seq, result))
        elif (np.ascontiguousarray(part).view(np.uint8) != 0xFF).any():
            raise Wrong(f"{what}[{seq}]: rows of a sequence of {m} tokens were written")


def _step(layer: Layer, shape: Shape, rng: np.random.Generator) -> Step:
    contexts, rows = shape["contexts"], shape["rows"]
    assert isinstance(contexts, tuple) and isinstance(rows, tuple)
    return Step.make(layer, contexts, rows, rng)


def run_prefill(lab: Lab, p: PrefillAttentionParams, shape: Shape, rng: np.random.Generator) -> None:
    step = _step(p.layer, shape, rng)
    got = OnDevice.put(lab, step, rng).prefill(lab, p.result, p.min_tokens)
    compare_step("attention_prefill", step, got, p.result, p.min_tokens)


def run_decode(lab: Lab, p: DecodeAttentionParams, shape: Shape, rng: np.random.Generator) -> None:
    step = _step(p.layer, shape, rng)
    on_device = OnDevice.put(lab, step, rng)
    for result in (DType.F32, p.layer.dtype):
        compare_step("attention_decode", step, on_device.decode(lab, result), result, max_tokens=1)


def run_combine(lab: Lab, p: CombineAttentionParams, shape: Shape, rng: np.random.Generator) -> None:
    """On splits of any value: sums up to a split's keys, maxima of -inf among them."""
    step = _step(p.layer, shape, rng)
    a, on_device = p.layer, OnDevice.put(lab, step, rng)
    splits = a.seen_splits.at(step.sizes)
    store = np.full((len(step.rows), a.q_heads, splits, a.split_bytes // 4), np.nan, np.float32)
    want = np.full((sum(step.rows), a.q_heads, a.value_dim), np.nan)
    for seq, m in enumerate(step.rows):
        if m != 1:
            continue
        last = step.contexts[seq] - 1
        n = last // a.split - step.first_key(last) // a.split + 1
        top = rng.standard_normal((a.q_heads, n)).astype(np.float32) * 4
        top[:, 1::3] = -np.inf
        sums = np.where(top == -np.inf, 0, rng.uniform(1, a.split, top.shape)).astype(np.float32)
        values = rng.standard_normal((a.q_heads, n, a.value_dim)).astype(np.float32) * sums[..., None]
        store[seq, :, :n, 0], store[seq, :, :n, 1] = top, sums
        store[seq, :, :n, HEADER_FLOATS : HEADER_FLOATS + a.value_dim] = values
        logits = f64(top) * (1.0 if a.alibi else np.float32(step.base2))
        sink = f64(step.sinks) * math.log2(math.e) if a.sinks else np.full(a.q_heads, -np.inf)
        most = np.maximum(logits.max(1), sink)
        weight = np.exp2(logits - most[:, None])
        total = (weight * sums).sum(1) + np.exp2(sink - most)
        want[step.starts[seq]] = (weight[..., None] * values).sum(1) / total[:, None]
    on_device.operands[SPLITS_SCRATCH] = lab.array(store)
    out = on_device.result(lab, p.result)
    on_device.launch(lab, p)
    got, one = out.numpy(), np.array([m == 1 for m in step.rows for _ in range(m)])
    tolerance = np.abs(want) * STEP[p.result] + 2.0**-18
    compare("attention_combine", got[one], Expected(want[one], tolerance[one]))
    if (np.ascontiguousarray(got[~one]).view(np.uint8) != 0xFF).any():
        raise Wrong("attention_combine: rows of other sequences were written")
