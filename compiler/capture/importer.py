"""FX graph -> IR, node by node. What each aten op means is in aten_*.py.

To teach the importer an op, write a handler there:

    @aten("square")
    def square(call: Call) -> Value:
        x = call.value("self")
        return call.add(Binary(BinaryFn.MUL), x, x)

A call's arguments go by the names in the op's schema; the types and shapes of its results are known from the trace
(`call.out`). Handlers return one value, or a tuple where the op does; an argument they do not read must not act.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from llmc.compiler.capture.aliasing import needed_nodes, shares_storage, storage
from llmc.compiler.capture.errors import CaptureError
from llmc.compiler.capture.sizes import Sizes, ir_dtype
from llmc.ir.dims import Dim
from llmc.ir.graph import Builder, IRError, Op, Value
from llmc.ir.ops.attention import Mask
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.pointwise import Cast
from llmc.ir.ops.shape import View
from llmc.ir.types import DType, TensorType

Result = Value | tuple[Value, ...]
Handler = Callable[["Call"], Result]

HANDLERS: dict[str, Handler] = {}
"""By qualified name without overload: "aten.mul"."""

HOW_TO_ADD = "add a handler to compiler/capture/aten_*.py (importer.py says how)"


def is_known(name: str) -> bool:
    """Whether an op has a handler, or is the in-place form of one that has."""
    return name in HANDLERS or (name.endswith("_") and name.removesuffix("_") in HANDLERS)


def aten(*names: str) -> Callable[[Handler], Handler]:
    """Register a handler for aten ops of these names, all their overloads."""
    return handles(*(f"aten.{name}" for name in names))


def handles(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for name in names:
            assert name not in HANDLERS, name
            HANDLERS[name] = handler
        return handler

    return register


class Importer:
    """Translates the nodes of one FX graph into a builder."""

    def __init__(self, builder: Builder, sizes: Sizes, ids: Value) -> None:
        self.builder = builder
        self.sizes = sizes
        self.env: dict[fx.Node, Result] = {}
        self.masks: dict[Value, Mask] = {}
        self.ids = ids

    def run(self, graph: fx.Graph) -> None:
        """Translate every call of a tensor op. Placeholders must be in `env` already. Raises CaptureError."""
        needed = needed_nodes(graph)
        for node in graph.nodes:
            if node.op != "call_function" or node not in needed:
                continue
            if node.target is operator.getitem and isinstance(parts := self.env[node.args[0]], tuple):
                self.env[node] = parts[node.args[1]]
            elif isinstance(node.target, torch._ops.OpOverload) and not _is_size(node):
                self.env[node] = self._call(Call(self, node, module_path(node)))

    def _call(self, call: Call) -> Result:
        handler = HANDLERS.get(call.name)
        if handler is None and call.name.endswith("_"):
            return self._in_place(call)
        if handler is None:
            raise CaptureError(f"{call.where}: op {call.name} is not known; {HOW_TO_ADD}")
        try:
            result = handler(call)
        except IRError as error:
            raise CaptureError(f"{call.where}: {call.name}: {error}") from error
        call.check(result)
        return result

    def _in_place(self, call: Call) -> Result:
        """`x.add_(y)` as `x = x + y`, where nothing else looks at x's storage."""
        functional = HANDLERS.get(call.name.removesuffix("_"))
        target = call.node.args[0]
        if isinstance(target, fx.Node) and storage(target).op == "placeholder":
            raise CaptureError(f"{call.where}: {call.name} changes a buffer while the model runs, not supported")
        if functional is None or not isinstance(target, fx.Node):
            raise CaptureError(f"{call.where}: in-place op {call.name} is not known")
        if shares_storage(target):
            raise CaptureError(f"{call.where}: {call.name} writes through a view, which is not supported")
        self.env[target] = result = functional(call)
        return result


@dataclass(frozen=True)
class Call:
    """One call of an op: its arguments by name, and the means to answer it."""

    importer: Importer
    node: fx.Node
    where: str

    @property
    def name(self) -> str:
        return str(self.node.target._overloadpacket)  # type: ignore[union-attr]

    @property
    def op(self) -> str:
        """The aten op's bare name, the same for its in-place form."""
        return self.name.split(".", 1)[1].removesuffix("_")

    @property
    def out(self) -> TensorType:
        """Type of the (first) result, from the trace."""
        traced = self.node.meta["val"]
        return self.importer.sizes.type(traced[0] if isinstance(traced, list | tuple) else traced, self.where)

    def arg(self, name: str) -> Any:
        """An argument by its schema name, its default where it was not given; FX nodes stay FX nodes."""
        for position, argument in enumerate(self.node.target._schema.arguments):  # type: ignore[union-attr]
            if argument.name == name:
                if position < len(self.node.args):
                    return self.node.args[position]
                if name in self.node.kwargs:
                    return self.node.kwargs[name]
                return argument.default_value if argument.has_default_value() else None
        return None

    def has(self, name: str) -> bool:
        return self.arg(name) is not None

    def value(self, name: str) -> Value:
        return self._value(self.arg(name))

    def values(self, name: str) -> list[Value]:
        return [self._value(argument) for argument in self.arg(name)]

    def number(self, name: str) -> float | int | bool:
        """A number known at build. CaptureError where the trace left it open."""
        given = self.arg(name)
        if not isinstance(given, bool | int | float):
            raise self.refuse(f"argument {name} is {given}, expected a number")
        return given

    def axis(self, name: str, rank: int) -> int:
        axis = self.number(name)
        return int(axis) % rank if rank else 0

    def operand(self, name: str, dtype: DType) -> Value:
        """A tensor, cast to `dtype`, or a number, as a scalar of it."""
        given = self.arg(name)
        if isinstance(given, bool | int | float):
            return self.add(Scalar(float(given), dtype))
        if isinstance(given, fx.Node) and isinstance(given.meta["val"], torch.SymInt | torch.SymFloat):
            raise self.refuse("computes with the batch size or sequence length as a number")
        return self.cast(self._value(given), dtype)

    def cast(self, value: Value, dtype: DType) -> Value:
        return value if value.tensor.dtype is dtype else self.add(Cast(dtype), value)

    def view(self, value: Value, *shape: Dim) -> Value:
        return value if value.tensor.shape == shape else self.add(View(shape), value)

    def add(self, op: Op, *inputs: Value) -> Value:
        return self.importer.builder.add(op, *inputs, loc=self.where, name=self.node.name)

    def dtype(self, dtype: torch.dtype) -> DType:
        return ir_dtype(dtype, self.where)

    def refuse(self, why: str) -> CaptureError:
        return CaptureError(f"{self.where}: {self.name} {why}")

    def check(self, result: Result) -> None:
        """Every result has the type that torch traced: our own bug if not."""
        traced = self.node.meta["val"]
        expected = traced if isinstance(traced, list | tuple) else [traced]
        found = result if isinstance(result, tuple) else (result,)
        for value, tensor in zip(found, expected, strict=True):
            want = self.importer.sizes.type(tensor, self.where)
            if value.type != want:
                raise self.refuse(f"was imported as {value.type}, torch traced {want}: a bug of llmc")

    def _value(self, argument: Any) -> Value:
        found = self.importer.env.get(argument) if isinstance(argument, fx.Node) else None
        if not isinstance(found, Value):
            raise self.refuse(f"has an argument {argument} that is no tensor")
        return found


def module_path(node: fx.Node) -> str:
    """Path of the HF module a node was traced in, as in state_dict names."""
    stack: Mapping[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return paths[-1].removeprefix("model").removeprefix(".") if paths else ""


def _is_size(node: fx.Node) -> bool:
    return not isinstance(node.meta.get("val"), torch.Tensor | list | tuple)
