"""SSA graph: values, nodes whose op is a frozen dataclass, and a schedule that is the order of the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from llmc.ir.types import TensorType, Type


class IRError(Exception):
    """A graph that is not valid IR. The message says which node, what was expected and what was found."""


@dataclass(frozen=True)
class Op:
    """What a node computes. Subclasses are frozen dataclasses; their fields are the op's attributes."""

    mnemonics: ClassVar[dict[str, type[Op]]] = {}

    def __init_subclass__(cls) -> None:
        name = cls.mnemonic()
        if name in Op.mnemonics and Op.mnemonics[name].__module__ != cls.__module__:
            raise TypeError(f"two ops are called {name}")
        Op.mnemonics[name] = cls

    @classmethod
    def mnemonic(cls) -> str:
        """The op's name in text: the class name in snake_case."""
        return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(cls.__name__))

    def infer(self, *types: Type) -> tuple[Type, ...]:
        """Types of the outputs for these input types. IRError when they do not fit."""
        raise NotImplementedError(type(self).__name__)


@dataclass(eq=False, slots=True)
class Value:
    """One SSA value, compared by identity. `name` is a hint for printing, made unique there."""

    type: Type
    name: str = ""

    @property
    def tensor(self) -> TensorType:
        if not isinstance(self.type, TensorType):
            raise IRError(f"%{self.name} is {self.type}, expected a tensor")
        return self.type


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One computation. `loc` is the path of the HF module it came from and survives every pass."""

    op: Op
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    loc: str = ""

    @property
    def output(self) -> Value:
        (out,) = self.outputs
        return out


@dataclass(frozen=True, eq=False)
class Graph:
    """An immutable SSA graph. Passes build new ones; values may be shared between old and new."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]

    def producers(self) -> dict[Value, Node]:
        return {out: node for node in self.nodes for out in node.outputs}

    def users(self) -> dict[Value, list[Node]]:
        users: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                users.setdefault(value, []).append(node)
        return users

    def input(self, name: str) -> Value:
        for value in self.inputs:
            if value.name == name:
                return value
        raise IRError(f"graph {self.name} has no input %{name}, only {[v.name for v in self.inputs]}")


@dataclass
class Builder:
    """Appends nodes in order, inferring their types."""

    nodes: list[Node] = field(default_factory=list)
    loc: str = ""

    def add(self, op: Op, *inputs: Value, loc: str | None = None, name: str = "") -> Value:
        """Append a node with one output and return it."""
        (out,) = self.add_multi(op, *inputs, loc=loc, name=name)
        return out

    def add_multi(self, op: Op, *inputs: Value, loc: str | None = None, name: str = "") -> tuple[Value, ...]:
        where = self.loc if loc is None else loc
        try:
            types = op.infer(*(v.type for v in inputs))
        except IRError as error:
            raise IRError(f"{op.mnemonic()} at {where or 'no module'}: {error}") from None
        outputs = tuple(Value(t, name) for t in types)
        self.nodes.append(Node(op, inputs, outputs, where))
        return outputs


def eliminate_dead_code(graph: Graph) -> Graph:
    """Drop nodes none of whose outputs reach the graph's outputs."""
    live = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if live.intersection(node.outputs):
            live.update(node.inputs)
            kept.append(node)
    return Graph(graph.name, graph.inputs, graph.outputs, tuple(reversed(kept)))


def substitute(graph: Graph, replaced: dict[Value, Value]) -> Graph:
    """Every use of a key becomes a use of its value (chains are followed); dead nodes are dropped."""

    def resolve(value: Value) -> Value:
        while value in replaced:
            value = replaced[value]
        return value

    nodes = tuple(Node(n.op, tuple(map(resolve, n.inputs)), n.outputs, n.loc) for n in graph.nodes)
    return eliminate_dead_code(Graph(graph.name, graph.inputs, tuple(map(resolve, graph.outputs)), nodes))


def walk(graph: Graph) -> Iterator[Node]:
    """All nodes, those of nested bodies after the node that holds them."""
    for node in graph.nodes:
        yield node
        for body in bodies(node.op):
            yield from walk(body)


def bodies(op: Op) -> tuple[Graph, ...]:
    return tuple(value for value in vars(op).values() if isinstance(value, Graph))
