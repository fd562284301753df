"""The loops of a rows kernel: what is stored and reduced, over which domain, and behind which barrier.

A block works on one row. Values are computed where they are needed; only results, the parts of concatenations,
operands of reductions and what cannot be recomputed cheaply get loops of their own. The *level* of a loop is the number
of block barriers before it: one more than that of the last loop whose results, left in shared memory or spread over the
threads, it reads. Loops of one level over equally many elements are one loop.

Numerics: a reduction of n elements has one order, by n alone, whatever else the kernel does and however many rows there
are: see `Path`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from llmc.codegen.cuda.rows.terms import (
    Compute,
    Load,
    Memory,
    NeedsMemory,
    Space,
    Term,
    Terms,
    movement,
    term_cost,
    visit,
)
from llmc.codegen.strided import Strided, dense
from llmc.ir.graph import Graph, IRError, Node, Value
from llmc.ir.ops.pointwise import Cast
from llmc.ir.ops.reduce import Reduce, ReduceFn
from llmc.ir.ops.shape import Concat, View
from llmc.ir.types import DType

VECTOR = 8  # elements a thread takes at once: 16 bytes of bf16, twice 16 of f32
MAX_LANES = 512
RECOMPUTED = 16  # instructions: what costs less is computed again rather than kept in shared memory
SPREAD = 64  # instructions: elements that cost more go to a thread each, a vector of them would keep others waiting
KEPT = 8192  # elements: longer rows are computed again whatever they cost, shared memory is short


class Path(enum.Enum):
    """Who adds the n elements of a reduction, and in which order.

    SEGMENT: n is 8, 16, ... 256: n / 8 neighbouring lanes, 8 elements each, then a butterfly.
    BLOCK: one reduction of another n: lanes(n) threads, elements (in vectors of 8 where n is a multiple) in turn; each
    thread in order, a butterfly over the warp, the warps in order.
    WARP: several reductions of another n: a warp each, elements in turn, a butterfly.
    """

    SEGMENT = "segment"
    BLOCK = "block"
    WARP = "warp"


def path_of(outer: int, width: int) -> Path:
    if width in (8, 16, 32, 64, 128, 256):
        return Path.SEGMENT
    return Path.BLOCK if outer == 1 else Path.WARP


def lanes(size: int, each: int = VECTOR) -> int:
    """Threads that share `size` elements: whole warps, `each` to a thread as far as MAX_LANES goes."""
    count = 32
    while count < MAX_LANES and count * each < size:
        count *= 2
    return count


@dataclass(frozen=True)
class Domain:
    """`size` elements in turn; `vector` of them to a thread at once. `segments` > 0: a warp for each of so many.
    `spread`: as many threads as elements.
    """

    size: int
    vector: int
    segments: int = 0
    spread: bool = False

    @property
    def lanes(self) -> int:
        return lanes(self.size, 1 if self.spread else VECTOR)

    @property
    def rounds(self) -> int:
        """Vectors a lane takes one after the other, at most."""
        return -(-self.size // self.vector // self.lanes)


@dataclass(frozen=True, eq=False)
class Store:
    """Element i of the domain goes to place i of `at` in `memory`."""

    term: Term
    memory: Memory
    at: Strided


@dataclass(frozen=True, eq=False)
class Reduction:
    """`outer` results, each of `width` neighbouring elements of the domain. `partial`: of BLOCK, one per warp."""

    fn: ReduceFn
    term: Term
    outer: int
    width: int
    path: Path
    memory: Memory
    partial: Memory | None
    where: str


@dataclass(eq=False)
class Loop:
    """What is done at one level over one domain."""

    level: int
    domain: Domain
    items: list[Store | Reduction] = field(default_factory=list)


@dataclass(frozen=True)
class Sink:
    """A value that has to be written to `at` of `memory`."""

    value: Value
    memory: Memory
    at: Strided


@dataclass(frozen=True)
class LoopPlan:
    """Loops by level, and of every shared memory the levels between which it must keep its bytes."""

    loops: list[Loop]
    shared: dict[Memory, tuple[int, int]]

    @property
    def num_levels(self) -> int:
        return 1 + max((loop.level for loop in self.loops), default=0)


def plan_loops(body: Graph, memory: dict[Value, Memory], sinks: Iterable[Sink]) -> LoopPlan:
    """Loops that fill all sinks of an expanded body. `memory`: of the inputs and gathered table rows.

    IRError names a node that has no CUDA code.
    """
    wanted: list[Value] = []
    sinks = list(sinks)
    while True:
        try:
            plan = _Planner(body, dict(memory), wanted).run(sinks)
        except NeedsMemory as need:
            assert need.value not in wanted
            wanted.append(need.value)
            continue
        costly = plan.costly()
        if costly is None:
            return LoopPlan(plan.ordered(), plan.lives())
        wanted.append(costly)


class _Planner:
    def __init__(self, body: Graph, memory: dict[Value, Memory], wanted: list[Value]) -> None:
        self.terms = Terms(body, memory)
        self.body = body
        self.given = set(memory.values())
        self.wanted = wanted
        self.level_of: dict[Memory, int] = {}  # at which it is written
        self.loops: dict[tuple[int, Domain], Loop] = {}
        self.names = 0

    def run(self, sinks: list[Sink]) -> _Planner:
        wanted = set(self.wanted)
        needed = self._needed(sinks)
        for node in self.body.nodes:
            if isinstance(node.op, Reduce) and node.output in needed:
                self.reduce(node, node.op)
            for value in node.outputs:
                if value in wanted:
                    self.keep(value)
        for sink in sinks:
            self.sink(sink)
        return self

    def _needed(self, sinks: list[Sink]) -> set[Value]:
        needed: set[Value] = set()
        stack = [s.value for s in sinks]
        while stack:
            value = stack.pop()
            if value not in needed:
                needed.add(value)
                node = self.terms.producers.get(value)
                stack += node.inputs if node is not None and value not in self.terms.memory else ()
        return needed

    # --- memory

    def fresh(self, dtype: DType, size: int, space: Space = Space.SHARED) -> Memory:
        stored = dtype if dtype in (DType.BOOL, DType.I32) else DType.I32 if dtype is DType.I64 else DType.F32
        self.names += 1
        stem = "total" if space is Space.SCALAR else "shared"
        return Memory(f"{stem}_{self.names - 1}", stored, space, size)

    def keep(self, value: Value) -> None:
        """The value's row in shared memory."""
        shape = value.tensor.row_shape()
        memory = self.fresh(value.tensor.dtype, prod(shape))
        self.write(value, memory, dense(shape))
        self.terms.memory[value] = memory

    # --- loops

    def loop(self, level: int, domain: Domain) -> Loop:
        return self.loops.setdefault((level, domain), Loop(level, domain))

    def level(self, term: Term) -> int:
        """The first at which everything the term loads is there."""
        loads = (t.memory for t in visit(term) if isinstance(t, Load))
        return max((self.level_of[m] + 1 for m in loads if m not in self.given), default=0)

    def sink(self, sink: Sink) -> None:
        """Results are computed where they are stored: behind views, roundings to the memory's type, concatenations."""
        value, at = sink.value, sink.at
        while value not in self.terms.memory:
            node = self.terms.producers.get(value)
            if node is None:
                break
            source = node.inputs[0] if node.inputs else value
            halves = sink.memory.dtype in (DType.BF16, DType.F16)
            if (
                isinstance(node.op, Cast)
                and node.op.dtype is sink.memory.dtype
                and halves
                and source.tensor.dtype is DType.F32
            ):
                value = source
                continue
            moved = at.viewed(source.tensor.row_shape()) if isinstance(node.op, View) else None
            if moved is None or source not in self.terms.producers:
                break
            movement(node)
            value, at = source, moved
        self.write(value, sink.memory, at)

    def write(self, value: Value, memory: Memory, at: Strided) -> None:
        """Loops that compute the value into `at`, part by part of a concatenation."""
        node = self.terms.producers.get(value)
        if node is not None and isinstance(node.op, Concat):
            axis = node.op.axis - node.output.tensor.is_rowed
            if axis < 0:
                raise IRError(f"rows kernel: {node.op} at {node.loc or 'no module'} mixes rows")
            start = 0
            for part in node.inputs:
                stop = start + part.tensor.row_shape()[axis]
                self.sink(Sink(part, memory, at.sliced(axis, start, stop)))
                start = stop
            return
        self.store(self.terms.of(value, at.shape), memory, at)

    def store(self, term: Term, memory: Memory, at: Strided) -> None:
        if at.size == 0:
            return
        level = self.level(term)
        self.level_of[memory] = max(level, self.level_of.get(memory, 0))
        spread = term_cost(term) >= SPREAD and at.size < VECTOR * MAX_LANES
        domain = Domain(at.size, 1, spread=True) if spread else _flat(at.shape)
        self.loop(level, domain).items.append(Store(term, memory, at))

    def reduce(self, node: Node, op: Reduce) -> None:
        (x,) = node.inputs
        where = f"{node.op.mnemonic()} at {node.loc or 'no module'}"
        axis = op.axis - x.tensor.is_rowed
        if x.tensor.dtype is not DType.F32 or axis < 0:
            raise IRError(f"rows kernel: {where} over axis {op.axis} of {x.type}: only f32 inside a row is reduced")
        shape = x.tensor.row_shape()
        last = [*(i for i in range(len(shape)) if i != axis), axis]
        width, outer = shape[axis], prod(shape) // max(shape[axis], 1)
        term = self.terms.walked(x, lambda s: s.permuted(last))
        level, path = self.level(term), path_of(outer, width)
        partial = None
        if path is Path.BLOCK:
            partial = self.fresh(DType.F32, lanes(width) // 32)
            self.level_of[partial] = level
        memory = self.fresh(DType.F32, outer, Space.SCALAR if path is Path.BLOCK else Space.SHARED)
        self.level_of[memory] = level
        domain = Domain(outer * width, 1, outer) if path is Path.WARP else _flat((outer, width))
        reduction = Reduction(op.fn, term, outer, width, path, memory, partial, where)
        self.loop(level, domain).items.append(reduction)
        self.terms.memory[node.output] = memory

    # --- the whole

    def ordered(self) -> list[Loop]:
        """By level, in one order whatever dicts do."""
        return sorted(self.loops.values(), key=lambda x: x.level)

    def costly(self) -> Value | None:
        """The first value that costs much and is computed more than once, not each time by the same thread."""
        work: dict[Value, float] = {}
        cost: dict[Value, int] = {}
        spread: set[Value] = set()
        for loop in self.loops.values():
            seen: set[object] = set()
            for item in loop.items:
                for term in visit(item.term):
                    if not isinstance(term, Compute) or (term.value, term.key) in seen:
                        continue
                    seen.add((term.value, term.key))
                    size = prod(term.value.tensor.row_shape())
                    if size == 1:
                        continue  # the same for the whole loop: computed once by each thread
                    work[term.value] = work.get(term.value, 0.0) + prod(term.key.shape) / size
                    once = loop.domain.vector if term.key.inner_stride == 0 else 1
                    cost[term.value] = max(cost.get(term.value, 0), term_cost(term) // once)
                    if not (term.key.whole and keeps(loop.domain)):
                        spread.add(term.value)
        for node in self.body.nodes:
            for value in node.outputs:
                again = value in spread and work[value] > 1 and value not in self.wanted
                if again and cost[value] >= RECOMPUTED and prod(value.tensor.row_shape()) <= KEPT:
                    return value
        return None

    def lives(self) -> dict[Memory, tuple[int, int]]:
        """Of every shared memory the first and the last level that touch it."""
        touched: dict[Memory, list[int]] = {}
        for loop in self.loops.values():
            for item in loop.items:
                for term in visit(item.term):
                    if isinstance(term, Load):
                        touched.setdefault(term.memory, []).append(loop.level)
                touched.setdefault(item.memory, []).append(loop.level)
                if isinstance(item, Reduction) and item.partial is not None:
                    touched.setdefault(item.partial, []).extend((loop.level, loop.level + 1))
        return {m: (min(at), max(at)) for m, at in touched.items() if m.space is Space.SHARED}


def keeps(domain: Domain) -> bool:
    """May a thread keep what it computed in registers until a later loop over the same elements?"""
    return not domain.segments and domain.rounds * domain.vector <= 4 * VECTOR


def _flat(shape: tuple[int, ...]) -> Domain:
    inner = [d for d in shape if d != 1]
    return Domain(prod(shape), VECTOR if inner and inner[-1] % VECTOR == 0 else 1)
