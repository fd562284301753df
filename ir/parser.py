"""Text -> graph, for everything `printer.print_graph` prints. Errors name line and column."""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from enum import Enum

from llmc.ir.dims import Dim, Poly, sym
from llmc.ir.formats import Groups, Packed, ScalePanels, Scheme, WeightLayout
from llmc.ir.graph import Graph, Node, Op, Value
from llmc.ir.ops import attention, kernel, nn, reduce, shape  # noqa: F401  their ops are known once they are made
from llmc.ir.ops.constant import Apply, Literal, Source, WeightExpr
from llmc.ir.types import CacheType, DType, Layout, TensorType, Type

_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|(?P<str>"(?:[^"\\]|\\.)*")|(?P<num>-?(?:\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+|\d+|inf\b|nan\b))"""
    r"""|(?P<val>%[A-Za-z0-9_.]+)|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<punct>[{}()\[\],:=@*+-])"""
)
T = typing.TypeVar("T")
E = typing.TypeVar("E", bound=Enum)
_EXPRS: dict[str, type] = {c.__name__: c for c in (Source, Literal, Apply)}


class ParseError(ValueError):
    """Text that is not a graph: `line L, column C: expected X, got Y`."""


def parse(text: str) -> Graph:
    """The graph that `text` prints. ParseError on anything else."""
    parser = _Parser(text)
    graph = parser.graph({})
    parser.expect_end()
    return graph


def parse_all(text: str) -> list[Graph]:
    """The graphs of a text that holds several, one after the other. ParseError counts lines within its graph."""
    starts = [i for i in range(len(text)) if text.startswith("graph ", i) and (i == 0 or text[i - 1] == "\n")]
    ends = [*starts[1:], len(text)]
    return [parse(text[a:b]) for a, b in zip([0, *starts[1:]], ends, strict=True)]  # what comes before counts


def parse_attributes(cls: type, text: str, others: object | None = None) -> object:
    """An instance of a dataclass from the attributes of its text form, `{field=value, ...}` (may be empty); those that
    are not given are as in `others`."""
    parser = _Parser(text)
    made = parser._fields(cls, {}, others)
    parser.expect_end()
    return made


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.dims: dict[str, Poly] = {}
        self.tokens: list[tuple[str, str, int]] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error(at, "a token", text[at])
            if match.lastgroup:
                self.tokens.append((match.lastgroup, match.group(), at))
            at = match.end()
        self.tokens.append(("end", "end of text", len(text)))
        self.next = 0

    def _error(self, at: int, expected: str, got: str) -> ParseError:
        return ParseError(f"{self._place(at)}: expected {expected}, got {got!r}")

    def _place(self, at: int) -> str:
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        return f"line {line}, column {column}"

    def fail(self, expected: str) -> ParseError:
        _, got, at = self.tokens[self.next]
        return self._error(at, expected, got)

    def accept(self, text: str) -> bool:
        kind, got, _ = self.tokens[self.next]
        if got == text and kind != "str":
            self.next += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.fail(repr(text))

    def take(self, kind: str, what: str) -> str:
        found, got, _ = self.tokens[self.next]
        if found != kind:
            raise self.fail(what)
        self.next += 1
        return got

    def expect_end(self) -> None:
        if self.tokens[self.next][0] != "end":
            raise self.fail("end of text")

    def graph(self, outer: dict[str, Value]) -> Graph:
        self.expect("graph")
        name = self.take("word", "the graph's name")
        self.expect("{")
        scope = dict(outer)
        inputs: list[Value] = []
        nodes: list[Node] = []
        outputs: tuple[Value, ...] = ()
        if self.accept("dims"):
            self._dims()
        if self.accept("inputs"):
            while True:
                value_name = self.take("val", "a value")[1:]
                self.expect(":")
                inputs.append(self._define(scope, value_name, self.value_type()))
                if not self.accept(","):
                    break
        while self.tokens[self.next][0] == "val":
            nodes.append(self._node(scope))
        if self.accept("outputs"):
            outputs = self._uses(scope)
        self.expect("}")
        return Graph(name, tuple(inputs), outputs, tuple(nodes))

    def _dims(self) -> None:
        while True:
            name = self.take("word", "a symbol")
            self.expect("in")
            self.expect("[")
            lo = int(self.take("num", "a lower bound"))
            self.expect(",")
            hi = None if self.accept("inf") else int(self.take("num", "an upper bound"))
            self.expect("]")
            self.dims[name] = sym(name, lo, hi)
            if not self.accept(","):
                break

    def _define(self, scope: dict[str, Value], name: str, type_: Type) -> Value:
        scope[name] = Value(type_, name)
        return scope[name]

    def _uses(self, scope: dict[str, Value]) -> tuple[Value, ...]:
        used: list[Value] = []
        while self.tokens[self.next][0] == "val":
            name = self.tokens[self.next][1][1:]
            if name not in scope:
                raise self.fail("a value defined before")
            used.append(scope[name])
            self.next += 1
            if not self.accept(","):
                break
        return tuple(used)

    def _node(self, scope: dict[str, Value]) -> Node:
        names = [self.take("val", "a value")[1:]]
        while self.accept(","):
            names.append(self.take("val", "a value")[1:])
        self.expect("=")
        op = self._op(scope)
        self.expect("(")
        inputs = self._uses(scope)
        self.expect(")")
        self.expect(":")
        outputs = [self._define(scope, names[0], self.value_type())]
        for name in names[1:]:
            self.expect(",")
            outputs.append(self._define(scope, name, self.value_type()))
        loc = json.loads(self.take("str", "a module path")) if self.accept("@") else ""
        return Node(op, inputs, tuple(outputs), loc)

    def value_type(self) -> Type:
        if self.accept("kv"):
            return CacheType()
        dtype = self._enum(DType)
        self.expect("[")
        dims = self._list(self.dim, "]")
        layout: Layout | None = None
        if self.tokens[self.next + 1][0] == "word" and self.accept("{"):
            layout = self._layout()
            self.expect("}")
        return TensorType(dtype, tuple(dims), layout)

    def _layout(self) -> Layout:
        groups = re.fullmatch(r"groups(\d+)", self.tokens[self.next][1])
        if groups:
            self.next += 1
            return Groups(int(groups[1]))
        if self.accept("scales"):
            self.expect("of")
            return ScalePanels(self._scheme())
        scheme = self._scheme()
        self.expect("in")
        return Packed(scheme, self._enum(WeightLayout))

    def _scheme(self) -> Scheme:
        _, got, at = self.tokens[self.next]
        try:
            scheme = Scheme.named(got)
        except ValueError as error:
            raise ParseError(f"{self._place(at)}: {error}") from None
        self.next += 1
        return scheme

    def dim(self) -> Dim:
        total = self._monomial()
        while True:
            if self.accept("+"):
                total = total + self._monomial()
            elif self.accept("-"):
                total = total - self._monomial()
            elif self.tokens[self.next][0] == "num" and self.tokens[self.next][1].startswith("-"):
                total = total + self._monomial()
            else:
                return total

    def _monomial(self) -> Dim:
        value = self._factor()
        while self.accept("*"):
            value = value * self._factor()
        return value

    def _factor(self) -> Dim:
        if self.tokens[self.next][0] == "num":
            return int(self.take("num", "a dim"))
        if self.tokens[self.next][1] not in self.dims:
            raise self.fail("a dim declared in `dims`")
        return self.dims[self.take("word", "a dim")]

    def _op(self, scope: dict[str, Value]) -> Op:
        name = self.tokens[self.next][1]
        if name not in Op.mnemonics:
            raise self.fail("an op")
        self.next += 1
        op = self._fields(Op.mnemonics[name], scope)
        assert isinstance(op, Op)
        return op

    def _fields(self, cls: type, scope: dict[str, Value], others: object | None = None) -> object:
        hints = typing.get_type_hints(cls)
        known = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
        given: dict[str, object] = {} if others is None else dict(vars(others))
        start = self.tokens[self.next][2]
        if self.accept("{") and not self.accept("}"):
            while True:
                if self.tokens[self.next][1] not in known:
                    raise self.fail(f"an attribute of {cls.__name__} ({', '.join(known)})")
                name = self.take("word", "an attribute")
                self.expect("=")
                given[name] = self._literal(known[name], scope)
                if not self.accept(","):
                    break
            self.expect("}")
        required = (f for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING)
        if missing := [f.name for f in required if f.name not in given]:
            raise self._error(start, f"{' and '.join(missing)} of {cls.__name__}", self._since(start))
        try:
            return cls(**given)
        except (TypeError, ValueError) as error:
            raise self._error(start, f"other attributes of {cls.__name__} ({error})", self._since(start)) from None

    def _since(self, start: int) -> str:
        return self.text[start : self.tokens[self.next][2]].strip() or "none"

    def _literal(self, hint: typing.Any, scope: dict[str, Value]) -> object:
        if hint == Dim:
            return self.dim()
        if isinstance(hint, types.UnionType):
            if type(None) in typing.get_args(hint) and self.accept("none"):
                return None
            (hint,) = (h for h in typing.get_args(hint) if h is not type(None))
        if typing.get_origin(hint) is tuple:
            self.expect("[")
            element = typing.get_args(hint)[0]
            return tuple(self._list(lambda: self._literal(element, scope), "]"))
        if hint is bool:
            if self.accept("true"):
                return True
            self.expect("false")
            return False
        if hint in (int, float):
            return hint(self.take("num", f"a number of type {hint.__name__}"))
        if hint is str:
            return json.loads(self.take("str", "a string"))
        if hint is Graph:
            return self.graph(scope)
        if hint is Op:
            return self._op(scope)
        if hint is TensorType:
            return self.value_type()
        if hint is Scheme:
            return self._scheme()
        if issubclass(hint, Enum):
            return self._enum(hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            kinds = _EXPRS if hint is WeightExpr else {hint.__name__: hint}
            kind = kinds.get(self.tokens[self.next][1])
            if kind is None:
                raise self.fail(" or ".join(f"{name}{{...}}" for name in kinds))
            self.next += 1
            return self._fields(kind, scope)
        raise self.fail(f"a literal of type {hint}")

    def _enum(self, hint: type[E]) -> E:
        try:
            value = hint(self.tokens[self.next][1])
        except ValueError:
            raise self.fail(f"one of {', '.join(str(e.value) for e in hint)}") from None
        self.next += 1
        return value

    def _list(self, item: typing.Callable[[], T], end: str) -> list[T]:
        items: list[T] = []
        while not self.accept(end):
            items.append(item())
            if not self.accept(","):
                self.expect(end)
                break
        return items
