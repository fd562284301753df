"""What one element of a row is made of: loads from memory under strided walks, and pointwise nodes on them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from llmc.codegen.cuda.expression import POINTWISE, literal
from llmc.codegen.strided import Strided, dense
from llmc.ir.graph import Graph, IRError, Node, Value
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, UnaryFn
from llmc.ir.ops.shape import Concat, Expand, GatherRows, Permute, Slice, View
from llmc.ir.types import DType

Walk = Callable[[Strided], Strided]


class Space(enum.Enum):
    GLOBAL = "global"
    SHARED = "shared"
    SCALAR = "scalar"  # one value that every thread holds


@dataclass(frozen=True)
class Memory:
    """A row's elements: `name` is a C++ pointer to the first, 16-byte aligned, or of a scalar the variable."""

    name: str
    dtype: DType
    space: Space
    size: int


@dataclass(frozen=True)
class Number:
    """A constant, as C++ text."""

    text: str


@dataclass(frozen=True, eq=False)
class Load:
    """The element of `memory` at each place of the walk `key`, which is over the row of `value`."""

    value: Value
    key: Strided
    memory: Memory


@dataclass(frozen=True, eq=False)
class Compute:
    """A pointwise node on the terms of its inputs: element `key` of `value`."""

    value: Value
    key: Strided
    node: Node
    args: tuple[Term, ...]


Term = Number | Load | Compute


class NeedsMemory(Exception):
    """A value must lie in memory before it can be read as asked."""

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self.value = value


@dataclass
class Terms:
    """Follows values back to what lies in memory. `memory`: of inputs, reductions and what else has been stored."""

    body: Graph
    memory: dict[Value, Memory]
    producers: dict[Value, Node] = field(init=False)
    _made: dict[tuple[Value, Strided], Load | Compute] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.producers = self.body.producers()

    def of(self, value: Value, domain: tuple[int, ...]) -> Term:
        """The term of a value at each place of `domain`, which its row broadcasts to."""
        return self.walked(value, lambda s: s.broadcast(domain))

    def walked(self, value: Value, walk: Walk) -> Term:
        """The term of the elements that a walk takes over the value's row. NeedsMemory where strides cannot say it."""
        node = self.producers.get(value)
        if node is not None and isinstance(node.op, Scalar):
            return Number(literal(node.op.value, node.op.dtype))
        if value in self.memory:
            key = walk(dense(value.tensor.row_shape()))
            return self._made.setdefault((value, key), Load(value, key, self.memory[value]))
        if node is None:
            raise IRError(f"rows kernel: no code reads %{value.name} of {value.type}")
        if isinstance(node.op, POINTWISE):
            shape = value.tensor.row_shape()
            key = walk(dense(shape))
            if (value, key) not in self._made:
                args = tuple(self.walked(v, lambda s: walk(s.broadcast(shape))) for v in node.inputs)
                self._made[value, key] = Compute(value, key, node, args)
            return self._made[value, key]
        source = node.inputs[0] if node.inputs else value
        match node.op:
            case GatherRows():
                return self.walked(source, walk)
            case View() | Expand() | Slice() | Permute():
                move = movement(node)

                def moved(s: Strided) -> Strided:
                    found = move(s)
                    if found is None:
                        raise NeedsMemory(source)
                    return walk(found)

                return self.walked(source, moved)
            case Concat():
                raise NeedsMemory(value)
        raise IRError(f"rows kernel: {node.op.mnemonic()} at {node.loc or 'no module'} has no CUDA code")


def movement(node: Node) -> Callable[[Strided], Strided | None]:
    """What a node that only renames elements does to a walk over its input's row."""
    given, gives = node.inputs[0].tensor, node.output.tensor
    rowed = given.is_rowed
    shape = gives.row_shape()
    where = node.loc or "no module"
    if rowed and given.shape[:1] != gives.shape[:1]:
        raise IRError(f"rows kernel: {node.op.mnemonic()} of {given} at {where} mixes rows")
    match node.op:
        case View():
            return lambda s: s.viewed(shape)
        case Expand():
            return lambda s: s.broadcast(shape)
        case Slice(axis, start, stop, step):
            return lambda s: s.sliced(axis - rowed, start, stop, step)
        case Permute(perm):
            if rowed and perm[0] != 0:
                raise IRError(f"rows kernel: permute of {given} at {where} mixes rows")
            inner = [p - 1 for p in perm[1:]] if rowed else list(perm)
            return lambda s: s.permuted(inner)
    raise AssertionError(node.op)


def visit(term: Term) -> Iterator[Load | Compute]:
    """The term and all it is made of, each once and before its arguments."""
    seen: set[int] = set()
    stack = [term]
    while stack:
        top = stack.pop()
        if isinstance(top, Number) or id(top) in seen:
            continue
        seen.add(id(top))
        yield top
        if isinstance(top, Compute):
            stack += reversed(top.args)


_COSTLY = {UnaryFn.NEG: 1, UnaryFn.ABS: 1, UnaryFn.NOT: 1, UnaryFn.RELU: 1, UnaryFn.SIN: 100, UnaryFn.COS: 100}


def own_cost(node: Node) -> int:
    """Instructions of one element of a pointwise node, roughly."""
    match node.op:
        case Unary(fn):
            return _COSTLY.get(fn, 20)
        case Binary(BinaryFn.POW):
            return 150
        case Binary(BinaryFn.DIV):
            return 10
        case Cast():
            return 1
    return 2


def term_cost(term: Term) -> int:
    """Instructions of one element computed anew, without its loads."""
    return sum(own_cost(t.node) for t in visit(term) if isinstance(t, Compute))
