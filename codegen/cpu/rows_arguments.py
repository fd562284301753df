"""The arguments of a generated rows kernel: where a row of each input lies, and where one of each output goes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from llmc.codegen.cpu.formats import row_bytes
from llmc.codegen.cpu.loops import Ref, dense
from llmc.ir.graph import Graph, IRError, Node, Value
from llmc.ir.ops.nn import Embedding
from llmc.ir.ops.shape import GatherRows, View
from llmc.ir.types import CacheType, DType

INTS = (DType.I32, DType.I64)  # one to a row, stored as int32
FLOATS = (DType.F32, DType.BOOL)  # a bool is stored as a float 0 or 1


@dataclass(frozen=True)
class Parameter:
    """One argument of a generated kernel."""

    name: str
    cpp_type: str


@dataclass(frozen=True)
class Int:
    """An integer of the row, as a C++ expression."""

    text: str


@dataclass(frozen=True)
class Inputs:
    """The parameters of the tensors among a body's inputs, and what each value is in the kernel."""

    parameters: tuple[Parameter, ...]
    refs: Mapping[Value, Ref | Int]


@dataclass(frozen=True)
class Outputs:
    """The parameters of the tensors among a body's outputs, and where a value's row is to be written: an output's, and
    that of the value which it only views."""

    parameters: tuple[Parameter, ...]
    destination: Mapping[Value, str]


def input_arguments(body: Graph) -> Inputs:
    """IRError for an input that no CPU code reads."""
    users = body.users()
    parameters: list[Parameter] = []
    refs: dict[Value, Ref | Int] = {}
    for index, value in enumerate(body.inputs):
        if not isinstance(value.type, CacheType):
            parameter, refs[value] = _input(body, value, index, refs, users)
            parameters.append(parameter)
    return Inputs(tuple(parameters), refs)


def _input(
    body: Graph, value: Value, index: int, refs: Mapping[Value, Ref | Int], users: Mapping[Value, list[Node]]
) -> tuple[Parameter, Ref | Int]:
    name = parameter_name(value, index)
    type_ = value.tensor
    rowed = type_.is_rowed
    if type_.dtype in INTS:
        if not rowed or type_.static_row_width() != 1:
            raise IRError(f"rows kernel: %{value.name} is {type_}; integers are one to a row")
        return Parameter(name, "const int32_t*"), Int(f"{name}[{_row_of(body, value, refs, users)}]")
    if type_.dtype not in FLOATS or type_.layout is not None:
        if rowed or not all(isinstance(n.op, Embedding) for n in users.get(value, [])):
            raise IRError(f"rows kernel: no code reads %{value.name} of {type_}")
        return Parameter(name, "const void*"), Ref(name, (), ())
    if not rowed:
        return Parameter(name, "const float*"), dense(name, type_.static_shape())
    row = _row_of(body, value, refs, users)
    width = type_.static_row_width()
    return Parameter(name, "const float*"), dense(f"({name} + (int64_t){row} * {width})", type_.row_shape())


def _row_of(body: Graph, value: Value, refs: Mapping[Value, Ref | Int], users: Mapping[Value, list[Node]]) -> str:
    """The row of an input that row `row` of the kernel reads: its own, or the one a gather names."""
    gathers = [n for n in users.get(value, []) if isinstance(n.op, GatherRows) and n.inputs[0] is value]
    if not gathers:
        return "row"
    if len(users[value]) != len(gathers):
        raise IRError(f"rows kernel: %{value.name} is read both whole and gathered")
    rows = refs.get(gathers[0].inputs[1])
    if rows is None:  # the index input stands later among the inputs: its parameter name is known by position
        index = body.inputs.index(gathers[0].inputs[1])
        return f"{parameter_name(gathers[0].inputs[1], index)}[row]"
    assert isinstance(rows, Int)
    return rows.text


def output_arguments(body: Graph) -> Outputs:
    producers = body.producers()
    destination: dict[Value, str] = {}
    parameters = []
    for i, value in enumerate(body.outputs):
        if isinstance(value.type, CacheType):
            continue
        name = f"out_{i}"
        if value.tensor.dtype in FLOATS:
            pointer = f"({name} + (int64_t)row * {value.tensor.static_row_width()})"
            parameters.append(Parameter(name, "float*"))
        elif value.tensor.dtype in INTS:
            pointer = f"{name}[row]"
            parameters.append(Parameter(name, "int32_t*"))
        else:
            pointer = f"({name} + (int64_t)row * {row_bytes(value.tensor)})"
            parameters.append(Parameter(name, "uint8_t*"))
        destination.setdefault(_base(value, producers), pointer)
        destination.setdefault(value, pointer)
    return Outputs(tuple(parameters), destination)


def _base(value: Value, producers: Mapping[Value, Node]) -> Value:
    """The value whose elements `value` is in the same order (views followed back)."""
    node = producers.get(value)
    if value.tensor.dtype not in FLOATS:
        return value
    while node is not None and isinstance(node.op, View) and node.inputs[0] in producers:
        value = node.inputs[0]
        node = producers.get(value)
    return value


def parameter_name(value: Value, index: int) -> str:
    """A C++ name that is the same in every layer: rows are x, weights go by the last part of their name."""
    type_ = value.tensor
    if type_.dtype in INTS:
        return f"{re.sub(r'[^A-Za-z]', '_', value.name).strip('_') or 'n'}_{index}"
    rowed = type_.is_rowed
    stem = "x" if rowed else re.sub(r"\W|_?\d+$", "_", value.name.rpartition(".")[2]).strip("_")
    return f"{stem or 'w'}_{index}"
