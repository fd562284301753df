"""print -> parse gives back the graph, for graphs of every op with any attributes, types, names and nesting."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from enum import Enum

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmc.ir.dims import Dim, Poly, Sym, sym
from llmc.ir.formats import SCHEMES, Groups, Packed, Scheme, WeightLayout
from llmc.ir.graph import Graph, Node, Op, Value
from llmc.ir.ops.constant import Apply, Literal, Source, WeightExpr
from llmc.ir.parser import parse
from llmc.ir.printer import print_graph
from llmc.ir.types import CacheType, DType, TensorType, Type

SYMBOLS = [sym("T"), sym("R", 0, 16), sym("inf_1", 1, 1 << 40), sym("B", 2)]
FLOATS = st.floats(width=64) | st.sampled_from(
    [-0.0, math.inf, -math.inf, math.nan, 5e-324, 1e-45, 1e16, -1e22, 3.4028235e38]
)
TEXT = st.text(max_size=8)
small = st.integers(-5, 1000)


def dims(nonnegative: bool = True) -> st.SearchStrategy[Dim]:
    monomial = st.builds(
        lambda c, factors: c * math.prod(factors, start=1),
        st.integers(-4, 9),
        st.lists(st.sampled_from(SYMBOLS), max_size=2),
    )
    return st.integers(0, 99) | st.sampled_from(SYMBOLS) | st.lists(monomial, min_size=1, max_size=3).map(sum)


schemes = st.sampled_from([*SCHEMES, Scheme.named("int8_int8g0"), Scheme.named("int8_int8g128")])
tensors = st.builds(
    TensorType,
    st.sampled_from(DType),
    st.lists(dims(), max_size=4).map(tuple),
    st.none()
    | st.builds(Packed, schemes, st.sampled_from(WeightLayout))
    | st.builds(Groups, st.sampled_from([0, 32, 64])),
)
value_types: st.SearchStrategy[Type] = tensors | st.just(CacheType())


def literals(hint: typing.Any, depth: int) -> st.SearchStrategy[typing.Any]:
    """Values of a field of this type."""
    if hint == Dim:
        return dims()
    if isinstance(hint, types.UnionType):
        return st.one_of(*(st.none() if h is type(None) else literals(h, depth) for h in typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        return st.lists(literals(typing.get_args(hint)[0], depth), max_size=3).map(tuple)
    if hint in (bool, int, float, str):
        return {bool: st.booleans(), int: small, float: FLOATS, str: TEXT}[hint]
    if hint is Graph:
        return graphs(depth - 1)
    if hint is Op:
        return ops(0)
    if hint is WeightExpr:
        return exprs(depth)
    if hint is TensorType:
        return tensors
    if hint is Scheme:
        return schemes
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    return made(hint, depth)


def made(cls: type, depth: int) -> st.SearchStrategy[typing.Any]:
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{f.name: literals(hints[f.name], depth) for f in dataclasses.fields(cls)})


def exprs(depth: int) -> st.SearchStrategy[WeightExpr]:
    leaves = made(Source, 0) | made(Literal, 0)
    if depth <= 0:
        return leaves
    return leaves | st.builds(Apply, ops(0), st.lists(st.deferred(lambda: exprs(depth - 1)), max_size=2).map(tuple))


def _has_body(cls: type) -> bool:
    return Graph in typing.get_type_hints(cls).values()


CLASSES = [c for c in Op.mnemonics.values() if c.__module__.startswith("llmc.")]


def ops(depth: int) -> st.SearchStrategy[Op]:
    return st.sampled_from([c for c in CLASSES if depth > 0 or not _has_body(c)]).flatmap(lambda c: made(c, depth))


@st.composite
def graphs(draw: st.DrawFn, depth: int = 2) -> Graph:
    name = draw(st.sampled_from(["main", "decode", "graph", "inputs", "dims", "f32", "_"]))
    names = st.sampled_from(["", "x", "x1", "v0", "v", "a.b", "9", "_", "model layers/0", "é%", "x-1", "kv"])
    inputs = tuple(Value(draw(value_types), draw(names)) for _ in range(draw(st.integers(0, 3))))
    known = list(inputs)
    nodes = []
    for _ in range(draw(st.integers(0, 4))):
        args = tuple(draw(st.sampled_from(known)) for _ in range(draw(st.integers(0, 3)))) if known else ()
        outputs = tuple(Value(draw(value_types), draw(names)) for _ in range(draw(st.integers(1, 2))))
        nodes.append(Node(draw(ops(depth)), args, outputs, draw(TEXT)))
        known += outputs
    outputs = tuple(draw(st.lists(st.sampled_from(known), max_size=2))) if known else ()
    return Graph(name, inputs, outputs, tuple(nodes))


def skeleton(thing: object, ids: dict[Value, int]) -> object:
    """Everything but the names of values, comparable: floats by their bits, values by the order they are defined in."""
    match thing:
        case Value():
            return (ids.setdefault(thing, len(ids)), thing.type)
        case Graph():
            return (
                thing.name,
                [skeleton(v, ids) for v in thing.inputs],
                [
                    (skeleton(n.op, ids), [skeleton(v, ids) for v in (*n.inputs, *n.outputs)], len(n.inputs), n.loc)
                    for n in thing.nodes
                ],
                [skeleton(v, ids) for v in thing.outputs],
            )
        case float():
            return thing.hex()
        case Poly() | TensorType() | Enum():
            return thing
        case tuple():
            return [skeleton(t, ids) for t in thing]
        case _ if dataclasses.is_dataclass(thing):
            return (type(thing), [skeleton(getattr(thing, f.name), ids) for f in dataclasses.fields(thing)])
    return thing


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(graphs())
def test_print_parse_is_the_identity(graph: Graph) -> None:
    text = print_graph(graph)
    parsed = parse(text)
    assert skeleton(parsed, {}) == skeleton(graph, {})
    assert print_graph(parsed) == text


@settings(max_examples=150, deadline=None)
@given(dims(), dims(), st.dictionaries(st.sampled_from(["T", "R", "inf_1", "B"]), st.integers(0, 50)))
def test_dims_are_equal_exactly_when_their_sizes_are(a: Dim, b: Dim, sizes: dict[str, int]) -> None:
    from llmc.ir.dims import divide, evaluate, symbols

    binding = {s.name: 7 for d in (a, b) for s in symbols(d)} | sizes
    at_a, at_b = evaluate(a, binding), evaluate(b, binding)
    assert evaluate(a + b, binding) == at_a + at_b
    assert evaluate(a - b, binding) == at_a - at_b
    assert evaluate(a * b, binding) == at_a * at_b
    assert (a == b) == (a - b == 0)
    if b != 0:
        assert divide(a * b, b) in (a, None)
        quotient = divide(a, b)
        assert quotient is None or quotient * b == a


def test_symbols_of_one_name_and_two_envelopes_are_two() -> None:
    assert sym("T", 1, 8) != sym("T", 1, 9) and Sym("T", 1, 8) != Sym("T", 1, None)
