"""What a kernel moves and computes, from its node and types: bytes by kind, and operations.

Conventions: each value that a kernel reads is read once, however often its blocks load it again; of an input that is
only sliced, gathered from or looked up in, the parts that are used count. A multiply-accumulate is two operations; a
pointwise function is one per element, whatever it is; conversions and moves are none.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from llmc.codegen.body_work import body_flops, elements, elements_read
from llmc.codegen.packing import stored_bytes
from llmc.ir.graph import Graph, IRError, Node, Value
from llmc.ir.ops.attention import KvWrite, Mask, PagedAttention
from llmc.ir.ops.constant import Weight
from llmc.ir.ops.kernel import PackedLinear, RowKernel, Rows
from llmc.ir.types import CacheType, DType, TensorType

SOFTMAX_FLOPS = 5  # per score: scale, maximum, subtract, exponential, sum
SOFTCAP_FLOPS = 3  # per score: divide, tanh, multiply


class Unit(enum.Enum):
    """Arithmetic whose rate a machine states: by operand, the sums are in 32 bits."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    E4M3 = "e4m3"
    S8 = "s8"


_UNITS = {DType.F32: Unit.F32, DType.F16: Unit.F16, DType.BF16: Unit.BF16, DType.I8: Unit.S8}


@dataclass(frozen=True)
class Step:
    """One run of an entry: `seqs` sequences, `new` tokens of each, behind `past` that lie in the cache. The last token
    of each is sampled."""

    seqs: int
    new: int
    past: int

    @property
    def tokens(self) -> int:
        return self.seqs * self.new

    @property
    def sizes(self) -> Mapping[str, int]:
        """The graph's symbols."""
        return {"T": self.tokens, "R": self.seqs}


@dataclass(frozen=True)
class Work:
    """Bytes and operations of a kernel, or of several together."""

    weights: int = 0
    reads: int = 0  # activations
    writes: int = 0
    kv_reads: int = 0
    kv_writes: int = 0
    matrix_flops: int = 0
    matrix_unit: Unit = Unit.F32
    vector_flops: int = 0

    @property
    def activations(self) -> int:
        return self.reads + self.writes

    @property
    def kv(self) -> int:
        return self.kv_reads + self.kv_writes

    @property
    def num_bytes(self) -> int:
        return self.weights + self.activations + self.kv


class Storage(Protocol):
    """How a target keeps values in memory."""

    def row_bytes(self, type_: TensorType) -> int:
        """From one row of a [T, ...] or [R, ...] value to the next."""

    def head_bytes(self, dtype: DType, dim: int, is_key: bool) -> int:
        """Of one head's key or value of one token in the cache."""


@dataclass(frozen=True)
class Slot:
    """What one token takes in the cache for one attention layer."""

    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: DType

    def token_bytes(self, storage: Storage) -> int:
        key = storage.head_bytes(self.dtype, self.head_dim, True)
        return self.kv_heads * (key + storage.head_bytes(self.dtype, self.value_dim, False))


def slots(graph: Graph) -> dict[int, Slot]:
    """The slots that a kernel-level graph writes, by number."""
    found = {}
    for node in graph.nodes:
        for inner in node.op.body.nodes if isinstance(node.op, Rows) else (node,):
            if isinstance(inner.op, KvWrite):
                k, v = inner.inputs[1].tensor, inner.inputs[2].tensor
                found[inner.op.slot] = Slot(_static(k, 1), _static(k, 2), _static(v, 2), inner.op.dtype)
    return found


def kernels(graph: Graph) -> list[Node]:
    """The nodes that are launches."""
    return [n for n in graph.nodes if not isinstance(n.op, Weight)]


@dataclass(frozen=True)
class Costing:
    """The work of a kernel-level graph's nodes on one target."""

    graph: Graph
    storage: Storage
    slots: Mapping[int, Slot]

    @classmethod
    def of(cls, graph: Graph, storage: Storage) -> Costing:
        return cls(graph, storage, slots(graph))

    def work(self, node: Node, step: Step) -> Work:
        """IRError for a node that is no kernel."""
        match node.op:
            case PackedLinear() as op:
                return self._linear(node, op, step)
            case Rows() as op:
                return self._rows(node, op, step)
            case PagedAttention() as op:
                return self._attention(node, op, step)
            case RowKernel() as op:
                return Work(
                    weights=sum(self._bytes(v, step) for v in node.inputs if not v.tensor.is_rowed),
                    reads=sum(self._bytes(v, step) for v in node.inputs if v.tensor.is_rowed),
                    writes=self._written(node, step),
                    vector_flops=op.flops * sum(elements(v.tensor, step.sizes) for v in node.inputs),
                )
        raise IRError(f"{node.op.mnemonic()} at {node.loc or 'no module'}: no kernel, so it has no cost")

    def _bytes(self, value: Value, step: Step) -> int:
        """Of a whole value: rows of a step, or a constant."""
        type_ = value.tensor
        if not value.tensor.is_rowed:
            return stored_bytes(type_)
        if type_.rank == 1:  # ids, positions: packed
            return elements(type_, step.sizes) * type_.dtype.num_bytes
        return elements(type_, step.sizes) // type_.static_row_width() * self.storage.row_bytes(type_)

    def _written(self, node: Node, step: Step) -> int:
        return sum(self._bytes(v, step) for v in node.outputs if isinstance(v.type, TensorType))

    def _linear(self, node: Node, op: PackedLinear, step: Step) -> Work:
        x, w, *extras = node.inputs
        n, k = w.tensor.static_shape()
        tokens = elements(x.tensor, step.sizes) // k
        return Work(
            weights=self._bytes(w, step) + sum(self._bytes(v, step) for v in extras if not v.tensor.is_rowed),
            reads=self._bytes(x, step) + sum(self._bytes(v, step) for v in extras if v.tensor.is_rowed),
            writes=self._written(node, step),
            matrix_flops=2 * tokens * n * k,
            matrix_unit=_UNITS[x.tensor.dtype],
            vector_flops=body_flops(op.epilogue, step.sizes),
        )

    def _rows(self, node: Node, op: Rows, step: Step) -> Work:
        weights = reads = 0
        users = op.body.users()
        for value, inner in zip(node.inputs, op.body.inputs, strict=True):
            if isinstance(value.type, CacheType):
                continue
            used = elements_read(inner, users, step.sizes)
            whole = used == elements(value.tensor, step.sizes)
            size = self._bytes(value, step) if whole else used * value.tensor.dtype.num_bytes
            if value.tensor.is_rowed:
                reads += size
            else:
                weights += size
        written = sum(
            self.slots[n.op.slot].token_bytes(self.storage) for n in op.body.nodes if isinstance(n.op, KvWrite)
        )
        return Work(
            weights=weights,
            reads=reads,
            writes=self._written(node, step),
            kv_writes=step.tokens * written,
            vector_flops=body_flops(op.body, step.sizes),
        )

    def _attention(self, node: Node, op: PagedAttention, step: Step) -> Work:
        slot = self.slots[op.slot]
        _, q, *rest = node.inputs
        heads = _static(q.tensor, 1)
        scores, keys = visible(op.mask, step.new, step.past)
        scores *= step.seqs * heads
        vector = SOFTMAX_FLOPS + (SOFTCAP_FLOPS if op.softcap is not None else 0)
        return Work(
            weights=sum(self._bytes(v, step) for v in rest if not v.tensor.is_rowed),
            reads=self._bytes(q, step) + sum(self._bytes(v, step) for v in rest if v.tensor.is_rowed),
            writes=self._written(node, step),
            kv_reads=step.seqs * keys * slot.token_bytes(self.storage),
            matrix_flops=2 * scores * (slot.head_dim + slot.value_dim),
            matrix_unit=_UNITS[q.tensor.dtype],
            vector_flops=scores * vector,
        )


@cache
def visible(mask: Mask, new: int, past: int) -> tuple[int, int]:
    """(scores that `new` queries behind `past` tokens have, keys that any of them sees), of one head and sequence."""
    positions = range(past, past + new)
    scores = sum(at + 1 - first_key(mask, at) for at in positions)
    return scores, past + new - first_key(mask, past)


def first_key(mask: Mask, at: int) -> int:
    """The first position that a query at `at` sees."""
    first = 0 if mask.window is None else max(0, at + 1 - mask.window)
    return first if mask.chunk is None else max(first, at // mask.chunk * mask.chunk)


def _static(type_: TensorType, axis: int) -> int:
    dim = type_.shape[axis]
    if not isinstance(dim, int):
        raise IRError(f"{type_}: its axis {axis} has no fixed size")
    return dim
