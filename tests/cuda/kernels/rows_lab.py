"""Runs the kernel of a rows body on the emulator and holds every byte it may write against the interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16

from llmc.codegen.cuda.arguments import COUNTS, Input, Operand, Output, Part, Slot
from llmc.codegen.cuda.plan.formats import row_bytes
from llmc.codegen.cuda.plan.kv import KV_BLOCK, CudaKvSlot
from llmc.codegen.cuda.rows.kernel import RowsParams
from llmc.codegen.packing import Packing
from llmc.emulator.session import Argument, DeviceArray, Schedule
from llmc.ir.dims import Poly
from llmc.ir.formats import Packed
from llmc.ir.graph import Graph, Node, Value
from llmc.ir.ops.attention import KvWrite
from llmc.ir.ops.kernel import Rows
from llmc.ir.ops.nn import Embedding
from llmc.ir.parser import parse
from llmc.ir.reference import Cache, run
from llmc.ir.types import CacheType, DType
from tests.cuda.kernels import rows_examples
from tests.cuda.kernels.references import Wrong
from tests.cuda.kernels.rows_examples import step_arrays

if TYPE_CHECKING:
    from tests.cuda.harness import Lab, Shape

Array = npt.NDArray[np.generic]
NUMPY = {
    DType.F32: np.float32,
    DType.BF16: bfloat16,
    DType.F16: np.float16,
    DType.I32: np.int32,
    DType.I64: np.int32,
    DType.BOOL: np.uint8,
}
WARPS = parse(
    """graph rows {
    dims R in [1, inf], T in [1, inf]
    inputs %x: f32[T, 8, 12]
    %y = softmax(%x) : f32[T, 8, 12]
    outputs %y
    }"""
)
TOKENS, SEQS, TABLE_STRIDE, NUM_BLOCKS = 7, 3, 5, 16


@cache
def bodies() -> dict[RowsParams, Graph]:
    """The examples, one whose heads' sums fill their shared memory to the last byte, and one with a warp to a sum."""
    others = (rows_examples.queries_keys_values(32, 16, 16, norms=True), WARPS)
    return {**rows_examples.examples(), **{rows_examples.kernel(body): body for body in others}}


@dataclass(frozen=True)
class Case:
    """A body, its kernel, and what is fed to it: arrays by body input, tokens and rows of the step."""

    body: Graph
    params: RowsParams
    arrays: dict[Value, Array]
    counts: dict[str, int]

    @property
    def num_rows(self) -> int:
        return self.counts[self.params.counter]


def make_case(body: Graph, seed: int = 0, given: Mapping[Value, Array] | None = None, tokens: int = TOKENS) -> Case:
    """Random inputs of every type; ids and positions inside the tables that embeddings index with them."""
    rng = np.random.default_rng(seed)
    counts = {"tokens": tokens, "rows": 4}
    sizes = {"T": tokens, "R": 4}
    tables = [n.inputs[0].tensor for n in body.nodes if isinstance(n.op, Embedding)]
    vocab = min((t.static_shape()[0] for t in tables), default=100)
    arrays: dict[Value, Array] = {}
    for value in body.inputs:
        if isinstance(value.type, CacheType):
            continue
        shape = tuple(sizes[str(d)] if isinstance(d, Poly) else d for d in value.tensor.shape)
        if given is not None and value in given:
            arrays[value] = given[value].astype(NUMPY[value.tensor.dtype])
        elif value.name == "rows":
            arrays[value] = rng.integers(0, tokens, shape).astype(np.int32)
        elif value.name == "seqs":
            arrays[value] = np.sort(rng.integers(0, SEQS, shape)).astype(np.int32)
        elif value.name == "positions":  # no two tokens at one place of one sequence
            arrays[value] = rng.permutation(min(vocab, TABLE_STRIDE * KV_BLOCK))[: shape[0]].astype(np.int32)
        elif value.tensor.dtype in (DType.I32, DType.I64):
            arrays[value] = rng.integers(0, vocab, shape).astype(np.int32)
        elif value.tensor.dtype is DType.BOOL:
            arrays[value] = rng.integers(0, 2, shape).astype(np.bool_)
        else:
            near_one = "norm" in value.name and value.tensor.rank == 1
            values = (1 if near_one else 0) + rng.standard_normal(shape) * (0.2 if near_one else 1.0)
            arrays[value] = values.astype(NUMPY[value.tensor.dtype])
    return Case(body, rows_examples.kernel(body), arrays, counts)


def stored(value: Value, array: Array, is_packed: bool) -> Array:
    """The bytes of an input as it lies in device memory; gaps hold 0xFF, which is NaN."""
    type_ = value.tensor
    data = np.ascontiguousarray(array.astype(NUMPY[type_.dtype]))
    if isinstance(type_.layout, Packed):
        columns = Packing(type_.layout.scheme, type_.layout.order).pad_k(data.shape[1])
        return np.pad(data, ((0, 0), (0, columns - data.shape[1]))).view(np.uint8).reshape(-1)
    if not type_.is_rowed or is_packed:
        return data.reshape(-1).view(np.uint8)
    flat = data.reshape(len(data), -1).view(np.uint8)
    out = np.full((len(data), row_bytes(type_)), 0xFF, np.uint8)
    out[:, : flat.shape[1]] = flat
    return out.reshape(-1)


@dataclass
class Results:
    """Raw bytes after a launch: of every output by body output, and of the cache's pool."""

    outputs: dict[int, Array]
    pool: Array | None


def slots_of(body: Graph) -> list[CudaKvSlot]:
    """The slot of each cache write, one behind the other in a block."""
    slots: list[CudaKvSlot] = []
    for node in body.nodes:
        if isinstance(node.op, KvWrite):
            (heads, d), (_, dv) = node.inputs[1].tensor.row_shape(), node.inputs[2].tensor.row_shape()
            offset = slots[-1].offset + slots[-1].num_bytes if slots else 0
            slots.append(CudaKvSlot(heads, d, dv, node.op.dtype, offset))
    return slots


def part(case: Case, first: int, rows: int) -> Case:
    """The case of some of its rows only."""
    symbol = "T" if case.params.counter == "tokens" else "R"
    arrays = {
        v: a[first : first + rows] if v.tensor.is_rowed and str(v.tensor.shape[0]) == symbol else a
        for v, a in case.arrays.items()
    }
    return replace(case, arrays=arrays, counts=case.counts | {case.params.counter: rows})


def launch(lab: Lab, case: Case, schedule: Schedule | None, bucket: int = 0) -> Results:
    """Runs the case on a grid of `bucket` blocks (0: as many as it has rows)."""
    body, p, counts = case.body, case.params, case.counts
    bucket = bucket or case.num_rows
    slots = slots_of(body)
    block_bytes = slots[-1].offset + slots[-1].num_bytes if slots else 0
    if schedule is not None:
        lab.emulator.set_checked(lab.checked)
        lab.emulator.set_schedule(schedule)
    try:
        outputs: dict[int, DeviceArray] = {}
        pool = lab.empty((NUM_BLOCKS * block_bytes,), np.uint8) if slots else None
        step = lab.array(np.array([counts["tokens"], SEQS, counts["rows"], TABLE_STRIDE], np.int32))

        def passed(operand: Operand) -> Argument:
            match operand:
                case Input(index):
                    value = body.inputs[index]
                    data = stored(value, case.arrays[value], value in step_arrays(body))
                    return lab.array(_even(data))
                case Output(index):
                    size = (bucket, row_bytes(body.outputs[index].tensor))
                    outputs[index] = lab.empty(size, np.uint8)
                    return outputs[index]
                case Slot(Part.POOL):
                    assert pool is not None
                    return pool
                case Slot(Part.BLOCK_BYTES):
                    return block_bytes.to_bytes(8, "little")
                case Slot(Part.OFFSET, index):
                    return slots[index].offset.to_bytes(8, "little")
                case Slot(Part.TABLES):
                    return lab.array(tables())
            assert operand == COUNTS, operand
            return step

        lab.launch(p, p.grid(bucket), *[passed(argument.operand) for argument in p.arguments])
        return Results({i: o.numpy() for i, o in outputs.items()}, pool.numpy() if pool is not None else None)
    finally:
        lab.emulator.reset()
        lab.release()


def tables() -> npt.NDArray[np.int32]:
    """Blocks of a sequence are scattered over the pool."""
    blocks = np.random.default_rng(5).permutation(NUM_BLOCKS)[: SEQS * TABLE_STRIDE]
    return blocks.astype(np.int32).reshape(SEQS, TABLE_STRIDE)


def _even(data: Array) -> Array:
    """The harness rewrites inputs two bytes at a time."""
    return np.append(data, np.zeros(-len(data) % 2, np.uint8))


def expected(case: Case) -> tuple[list[object], Cache]:
    """The body's outputs by the interpreter, and the cache it filled."""
    inputs = tuple(Value(v.type, f"in{i}") for i, v in enumerate(case.body.inputs))
    outputs = tuple(Value(v.type, f"out{i}") for i, v in enumerate(case.body.outputs))
    graph = Graph("case", inputs, outputs, (Node(Rows(case.body), inputs, outputs),))
    cache = Cache()
    given: dict[str, object] = {}
    for outer, value in zip(inputs, case.body.inputs, strict=True):
        if isinstance(value.type, CacheType):
            given[outer.name] = cache
        else:
            array = case.arrays[value]
            given[outer.name] = array.astype(np.float32) if value.tensor.dtype in (DType.BF16, DType.F16) else array
    with np.errstate(all="ignore"):
        return run(graph, given, _no_weights), cache


def _no_weights(source: object) -> Array:
    raise AssertionError(source)


F32_STEPS = 4e-6  # a few roundings, relative and absolute: what kernels add is near 1
TOLERANCE = {DType.F32: F32_STEPS, DType.BF16: 2.0**-7, DType.F16: 2.0**-10}  # one step of a half format


def compare(case: Case, results: Results, slack: float = 1) -> None:
    """Every value against the interpreter; every byte that no row owns untouched.

    `slack`: how many roundings of f32 chains of ops may gather beyond a few.
    """
    want, cache = expected(case)
    for index, raw in results.outputs.items():
        type_ = case.body.outputs[index].tensor
        width = int(np.prod(type_.row_shape(), dtype=int)) * np.dtype(NUMPY[type_.dtype]).itemsize
        n = case.num_rows
        got = np.ascontiguousarray(raw[:n, :width]).view(NUMPY[type_.dtype])
        check_close(
            f"{case.params.name} output {index}", got, np.asarray(want[index]).reshape(n, -1), type_.dtype, slack
        )
        if not (raw[n:] == 0xFF).all() or not (raw[:, width:] == 0xFF).all():
            raise Wrong(f"{case.params.name} output {index}: bytes outside the rows of the step were written")
    if results.pool is not None:
        compare_pool(case, results.pool, cache)


def check_close(what: str, got: Array, want: Array, dtype: DType, slack: float = 1) -> None:
    if not dtype.is_float:
        if not np.array_equal(got.astype(np.int64), want.astype(np.int64)):
            raise Wrong(f"{what}: integers or masks differ")
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        raise Wrong(f"{what}: infinities or NaNs differ")
    error = np.abs(a[finite] - b[finite])
    relative = max(TOLERANCE[dtype], slack * F32_STEPS)
    bad = ~(error <= relative * np.abs(b[finite]) + slack * F32_STEPS)
    if bad.any():
        at = int(np.argmax(bad))
        raise Wrong(f"{what}: {bad.sum()} of {bad.size} wrong, first {a[finite][at]}, expected {b[finite][at]}")


def compare_pool(case: Case, pool: Array, cache: Cache) -> None:
    """Keys and values of each token where its block table says, zeros behind them, nothing else."""
    slots = slots_of(case.body)
    block_bytes = slots[-1].offset + slots[-1].num_bytes
    untouched = np.ones(pool.size, np.bool_)
    writes = [n.op for n in case.body.nodes if isinstance(n.op, KvWrite)]
    for write, slot in zip(writes, slots, strict=True):
        kind = NUMPY[slot.dtype]
        for (number, seq, position), pair in cache.entries.items():
            if number != write.slot:
                continue
            block = int(tables()[seq, position // KV_BLOCK])
            base = block * block_bytes + slot.offset
            parts = ((pair[0], slot.padded_head_dim), (pair[1], slot.padded_value_dim))
            for want, padded in parts:
                for head in range(slot.kv_heads):
                    at = base + (head * KV_BLOCK + position % KV_BLOCK) * padded * 2
                    got = pool[at : at + 2 * padded].view(kind).astype(np.float64)
                    row = np.zeros(padded)
                    row[: want.shape[1]] = want[head]
                    check_close(f"{case.params.name} cache", got, row, slot.dtype)
                    untouched[at : at + 2 * padded] = False
                base += slot.kv_heads * KV_BLOCK * slot.padded_head_dim * 2
    if not (pool[untouched] == 0xFF).all():
        raise Wrong(f"{case.params.name}: bytes of other positions were written")


def run_example(lab: Lab, p: RowsParams, shape: Shape, rng: np.random.Generator) -> None:
    """The harness's case of one of the examples: `rows` rows of the step, and two blocks too many."""
    rows = shape["rows"]
    assert isinstance(rows, int)
    whole = make_case(bodies()[p], int(rng.integers(1 << 30)), tokens=max(rows, TOKENS))
    case = part(replace(whole, params=p), 0, rows)
    compare(case, launch(lab, case, None, bucket=rows + 2))
