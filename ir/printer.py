"""Graph -> text. The text is the dump, the test format and part of the engine; `parser.parse` reads it back.

graph decode {
  dims T in [1, 512]
  inputs %x: f32[T, 64], %w: f32[64]
  %y = rms_norm{eps=1e-05}(%x, %w) : f32[T, 64] @ "model.norm"
  outputs %y
}
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from enum import Enum

from llmc.ir.dims import Poly, Sym
from llmc.ir.formats import Scheme
from llmc.ir.graph import Graph, Node, Op, Value
from llmc.ir.types import TensorType


def print_graph(graph: Graph) -> str:
    """The whole graph as text, ending in a newline."""
    return _print(graph, "", {}) + "\n"


def _print(graph: Graph, indent: str, outer: dict[Value, str]) -> str:
    inner = indent + "  "
    names = dict(outer) | _unique_names(graph, set(outer.values()))
    lines = [f"graph {graph.name} {{"]
    if not outer and not indent:
        dims = ", ".join(f"{s.name} in [{s.lo}, {'inf' if s.hi is None else s.hi}]" for s in graph_symbols(graph))
        lines += [f"{inner}dims {dims}"] if dims else []
    if graph.inputs:
        lines.append(f"{inner}inputs " + ", ".join(f"%{names[v]}: {v.type}" for v in graph.inputs))
    lines += [inner + _node(node, inner, names) for node in graph.nodes]
    if graph.outputs:
        lines.append(f"{inner}outputs " + ", ".join(f"%{names[v]}" for v in graph.outputs))
    return "\n".join([*lines, f"{indent}}}"])


def _node(node: Node, indent: str, names: dict[Value, str]) -> str:
    outs = ", ".join(f"%{names[v]}" for v in node.outputs)
    types = ", ".join(str(v.type) for v in node.outputs)
    args = ", ".join(f"%{names[v]}" for v in node.inputs)
    loc = f" @ {json.dumps(node.loc)}" if node.loc else ""
    return f"{outs} = {_fields(node.op, indent, names)}({args}) : {types}{loc}"


def _fields(thing: object, indent: str, names: dict[Value, str]) -> str:
    assert dataclasses.is_dataclass(thing)
    name = thing.mnemonic() if isinstance(thing, Op) else type(thing).__name__
    shown = []
    for f in dataclasses.fields(thing):
        value = getattr(thing, f.name)
        if f.default is dataclasses.MISSING or value != f.default:
            shown.append(f"{f.name}={_literal(value, indent, names)}")
    return f"{name}{{{', '.join(shown)}}}" if shown else name


def _literal(value: object, indent: str, names: dict[Value, str]) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int() | float() | Poly():
            return str(value)
        case str():
            return json.dumps(value)
        case Enum():
            return str(value.value)
        case tuple():
            return f"[{', '.join(_literal(v, indent, names) for v in value)}]"
        case Graph():
            return _print(value, indent, names)
        case TensorType() | Scheme():
            return str(value)
        case _:
            return _fields(value, indent, names)


def _unique_names(graph: Graph, taken: set[str]) -> dict[Value, str]:
    names: dict[Value, str] = {}
    counts: dict[str, int] = {}
    for value in (*graph.inputs, *(out for node in graph.nodes for out in node.outputs)):
        base = re.sub(r"[^A-Za-z0-9_.]", "_", value.name) or "v"
        name = base if value.name else "v0"
        while name in taken:
            counts[base] = counts.get(base, 0) + 1
            name = f"{base}{counts[base]}" if not base[-1].isdigit() else f"{base}_{counts[base]}"
        taken.add(name)
        names[value] = name
    return names


def graph_symbols(graph: Graph) -> list[Sym]:
    """Every symbol in the types of the graph's values and in the attributes of its ops, sorted by name."""
    return sorted(set(_symbols(graph)))


def _symbols(thing: object) -> Iterator[Sym]:
    match thing:
        case Poly():
            yield from thing.symbols()
        case Graph():
            values = [*thing.inputs, *(v for n in thing.nodes for v in n.outputs)]
            yield from _symbols(tuple(v.type for v in values))
            yield from _symbols(tuple(n.op for n in thing.nodes))
        case tuple():
            for item in thing:
                yield from _symbols(item)
        case _ if dataclasses.is_dataclass(thing):
            yield from _symbols(tuple(getattr(thing, f.name) for f in dataclasses.fields(thing)))
