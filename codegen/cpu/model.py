"""Kernel-level graphs of all entries -> the C++ source of an engine and its launch plans."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources

import jinja2

from llmc.codegen.buffers import row_symbol
from llmc.codegen.cpu.arena import AttentionShape, CpuArena
from llmc.codegen.cpu.epilogue import Epilogue, write_epilogue
from llmc.codegen.cpu.expression import literal
from llmc.codegen.cpu.formats import MAX_PARTS, table_type
from llmc.codegen.cpu.kv import kv_arguments, slot_bytes
from llmc.codegen.cpu.plan import CpuLaunch, CpuPlan, make_plan
from llmc.codegen.cpu.rows_arguments import Parameter
from llmc.codegen.cpu.rows_kernel import RowsKernel, write_rows
from llmc.codegen.kv_groups import KvGroups, Place, cache_slots, group_slots
from llmc.codegen.memory import RowKind
from llmc.codegen.weights import PlacedWeight
from llmc.ir.graph import Graph, IRError, Node, Value
from llmc.ir.ops.attention import PagedAttention
from llmc.ir.ops.constant import Weight, WeightExpr
from llmc.ir.ops.kernel import PackedLinear, Rows, Sample
from llmc.ir.types import TensorType

MAX_HEAD_DIM = 1024  # templates/cpu/attention_split.h
HEADERS = ("abi.h", "attention.h", "engine.h", "linear.h", "rows.h", "strided.h")  # with what the launches call
_INPUTS = {"ids": "s.in.token_ids", "positions": "s.in.positions", "rows": "s.in.rows", "seqs": "s.engine.seqs"}


@dataclass(frozen=True)
class Model:
    """Generated sources by file name, plans by entry, and what the manifest says of memory."""

    sources: dict[str, str]
    plans: dict[str, CpuPlan]
    kv: KvGroups
    arena: CpuArena


@dataclass
class _Source:
    """Kernels and epilogues by symbol; equal ones of different layers are one."""

    kernels: dict[str, RowsKernel] = field(default_factory=dict)
    epilogues: dict[str, Epilogue] = field(default_factory=dict)


def render(
    name: str,
    target: str,
    entries: list[Graph],
    weights: Mapping[WeightExpr, PlacedWeight],
    num_valid_tokens: int,
) -> Model:
    """The engine's C++ and plans. IRError names a node that has no CPU code."""
    kv = group_slots(cache_slots(entries[0]), slot_bytes)
    source = _Source()
    plans, rendered = {}, []
    for graph in entries:
        writer = _Entry(graph, weights, kv.places, source)
        plans[graph.name] = writer.plan
        rendered.append({"name": graph.name, "launches": writer.launches()})
    arena = CpuArena(
        len(kv.groups),
        max(p.values.arena.bytes_per_token for p in plans.values()),
        max(p.values.arena.bytes_per_row for p in plans.values()),
        _attention_shapes(entries[0], kv.places),
        num_valid_tokens,
    )
    constants = {
        "kv_groups": kv.groups,
        "per_token": arena.buffers_per_token,
        "per_row": arena.per_row,
        "vocab": _vocab(entries[0]),
        "valid_tokens": num_valid_tokens,
        "attention": arena.attention,
    }
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_template("model.cpp.j2"))
    text = template.render(
        name=name,
        target=target,
        headers=HEADERS,
        constants=constants,
        kernels=[{"symbol": s, "parameters": k.parameters, "lines": k.lines} for s, k in source.kernels.items()],
        epilogues=[{"symbol": s, **vars(e)} for s, e in source.epilogues.items()],
        entries=rendered,
    )
    sources = {"model.cpp": text + "\n"} | {h: _template(h) for h in _headers()}
    return Model(sources, plans, kv, arena)


def _template(name: str) -> str:
    return resources.files("llmc.templates.cpu").joinpath(name).read_text()


def _headers() -> list[str]:
    folder = resources.files("llmc.templates.cpu")
    return sorted(f.name for f in folder.iterdir() if f.name.endswith(".h"))


def _vocab(graph: Graph) -> int:
    (sample,) = (n for n in graph.nodes if isinstance(n.op, Sample))
    return _int(sample.inputs[0].tensor.shape[1])


def _attention_shapes(graph: Graph, places: tuple[Place, ...]) -> list[AttentionShape]:
    shapes = {
        (_int(n.inputs[1].tensor.shape[1]), places[n.op.slot].slot.kv_heads, n.op.value_dim)
        for n in graph.nodes
        if isinstance(n.op, PagedAttention)
    }
    return [AttentionShape(*shape) for shape in sorted(shapes)]


class _Entry:
    """Renders the launches of one entry."""

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[WeightExpr, PlacedWeight],
        places: tuple[Place, ...],
        source: _Source,
    ) -> None:
        self.graph, self.places, self.source = graph, places, source
        self.weights = {n.output: weights[n.op.expr] for n in graph.nodes if isinstance(n.op, Weight)}
        self.plan = make_plan(graph, {v: w.name for v, w in self.weights.items()})
        self.buffers = {b.name: b for b in self.plan.values.buffers}

    def launches(self) -> list[dict[str, object]]:
        return [
            {"sync": launch.sync, "comment": _comment(node, launch), "call": self.call(node)}
            for node, launch in zip(self.plan.nodes, self.plan.launches, strict=True)
        ]

    def call(self, node: Node) -> str:
        match node.op:
            case Rows():
                return self.rows(node, node.op)
            case PackedLinear():
                return self.linear(node, node.op)
            case PagedAttention():
                return self.attention(node, node.op)
            case Sample():
                logits = self.pointer(node.inputs[0], "float")
                return f"finish_rows(s, {logits}, (int){self.count(node.inputs[0])}, VOCAB, VALID_TOKENS, w);"
        raise IRError(f"{node.op.mnemonic()} at {node.loc}: not a CPU kernel")

    def pointer(self, value: Value, cpp: str) -> str:
        """The address of a value's first row, as C++."""
        if value in self.weights:
            return f"s.weight<{cpp}>({self.weights[value].offset})"
        name = self.plan.values.names[value]
        if name in _INPUTS:
            return _INPUTS[name]
        buffer = self.buffers[name]
        region = "token_rows" if buffer.rows == RowKind.TOKEN.value else "sampled_rows"
        return f"s.{region}<{cpp}>({buffer.offset})"

    def count(self, value: Value) -> str:
        return "s.in.num_rows" if row_symbol(value.tensor) == "R" else "s.in.num_tokens"

    def rows(self, node: Node, op: Rows) -> str:
        kernel = write_rows(op.body)
        symbol = _symbol("rows", "\n".join([*kernel.lines, *map(str, kernel.parameters)]))
        self.source.kernels.setdefault(symbol, kernel)
        values = [v for v in (*node.inputs, *node.outputs) if isinstance(v.type, TensorType)]
        arguments = []
        for parameter, value in zip(kernel.parameters, values, strict=False):
            arguments.append(self.pointer(value, _element(parameter)))
        for write in kernel.cache_writes:
            arguments += kv_arguments(self.places[write.slot])
        rowed = next(v for v in (*node.outputs, *node.inputs) if isinstance(v.type, TensorType) and v.type.is_rowed)
        return f"{symbol}({', '.join(arguments)}, {self.count(rowed)}, w);"

    def linear(self, node: Node, op: PackedLinear) -> str:
        epilogue = write_epilogue(op)
        symbol = _symbol("Epilogue", repr(epilogue))
        self.source.epilogues.setdefault(symbol, epilogue)
        x, *rest = node.inputs
        parts, extras = rest[: op.num_parts], rest[op.num_parts :]
        w = parts[0]
        n, k = w.tensor.static_shape()
        members = [self.pointer(v, _element(m)) for m, v in zip(epilogue.members, (*extras, node.output), strict=True)]
        arrays = [self.pointer(v, "void") for v in parts] + ["nullptr"] * (MAX_PARTS - len(parts))
        weights = f"Weights{{{', '.join(arrays)}, {n}, {k}}}"
        operand = f"{self.pointer(x, 'void')}, {self.count(x)}"
        return f"linear<{table_type(w.tensor)}>({weights}, {operand}, {symbol}{{{', '.join(members)}}}, w);"

    def attention(self, node: Node, op: PagedAttention) -> str:
        q, sinks = node.inputs[1], node.inputs[4:]
        place = self.places[op.slot]
        slot, (pool, slot_cpp) = place.slot, kv_arguments(place)
        if max(slot.head_dim, slot.value_dim) > MAX_HEAD_DIM:
            raise IRError(
                f"paged_attention at {node.loc}: head dim {slot.head_dim}, the CPU kernel goes to {MAX_HEAD_DIM}"
            )
        heads = _int(q.tensor.shape[1])
        softcap = literal(op.softcap or 0.0)
        sink = self.pointer(sinks[0], "float") if sinks else "nullptr"
        mask = f"{op.mask.window or 0}, {op.mask.chunk or 0}"
        shape = f"AttentionShape{{{heads}, {literal(op.scale)}, {softcap}, {mask}, {sink}, nullptr}}"
        store = f"StoreHeads{{{self.pointer(node.output, 'float')}, {heads * slot.value_dim}, {slot.value_dim}}}"
        batch = "AttentionBatch{s.in.num_seqs, s.in.seq_starts, s.in.positions}"
        query = self.pointer(q, "float")
        return f"attention({shape}, {batch}, {pool}, {slot_cpp}, {query}, {store}, s.engine.attention, w);"


def _element(parameter: Parameter) -> str:
    return parameter.cpp_type.removeprefix("const ").removesuffix("*")


def _symbol(stem: str, text: str) -> str:
    return f"{stem}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _comment(node: Node, launch: CpuLaunch) -> str:
    types = ", ".join(str(v.type) for v in node.outputs)
    return f"{launch.op} {node.loc} -> {types}".replace("\n", " ")


def _int(dim: object) -> int:
    assert isinstance(dim, int)
    return dim
