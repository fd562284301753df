"""The body of a `rows` node -> a CUDA kernel that works row by row.

One block for each row: rows of a language model hold hundreds to thousands of elements, which is as many threads as
hide the latency of their loads, and a block can leave its results where the next loop finds them. Short rows (a rotary
table) make blocks of one warp; an SM holds 32 such blocks, half of its warps, enough for kernels that are a launch's
length anyway. More rows to a block would make the order of sums, or what a block must wait for, depend on the batch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from llmc.codegen.buffers import row_symbol
from llmc.codegen.cuda.arguments import Input, KernelArgument, Output, Part, Scratch, Slot, counts
from llmc.codegen.cuda.expression import expression
from llmc.codegen.cuda.kernel import Budget, check, rejects_smem
from llmc.codegen.cuda.plan.formats import row_bytes
from llmc.codegen.cuda.plan.kv import KV_BLOCK, CudaKvSlot
from llmc.codegen.cuda.rows.emit import emit_loops, stored_type
from llmc.codegen.cuda.rows.expand import expand
from llmc.codegen.cuda.rows.loops import LoopPlan, Sink, plan_loops
from llmc.codegen.cuda.rows.terms import Load, Memory, Number, Space, Term, Terms, visit
from llmc.codegen.cuda.target.capabilities import CudaTarget
from llmc.codegen.memory import Life, RowKind, place_buffers
from llmc.codegen.packing import Packing
from llmc.codegen.strided import Strided, dense
from llmc.ir.formats import Packed, WeightLayout
from llmc.ir.graph import Graph, IRError, Node, Value
from llmc.ir.ops.attention import KvWrite
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.nn import Embedding
from llmc.ir.ops.shape import GatherRows
from llmc.ir.types import CacheType, DType, TensorType

_COUNTERS = {"T": "tokens", "R": "rows"}


@dataclass(frozen=True)
class RowsParams:
    """A generated kernel. Equal bodies of different layers, which read other weights, are equal.

    `counter`: which of Counts says how many rows there are: tokens or rows. `text`: the lines of the kernel's body.
    `work`: instructions of a thread, roughly; `vector_loads`, `vector_stores`: 16-byte accesses of global memory.
    """

    name: str
    counter: str
    arguments: tuple[KernelArgument, ...]
    text: tuple[str, ...]
    threads: int
    smem_bytes: int
    vector_loads: int
    vector_stores: int
    work: int
    template: ClassVar[str] = "rows"

    def __post_init__(self) -> None:
        check(self.counter in _COUNTERS.values(), f"counter {self.counter}: tokens or rows")

    @property
    def label(self) -> str:
        return self.name

    @property
    def blocks_per_sm(self) -> int:
        return 1

    def grid(self, num_rows: int) -> tuple[int]:
        """Blocks for at most so many rows."""
        return (num_rows,)

    @property
    def loads_in_flight(self) -> int:
        return max(1, self.vector_loads)

    @property
    def scratch(self) -> Mapping[Scratch, int]:
        return {}

    def rejects(self, target: CudaTarget) -> str | None:
        return rejects_smem(self, target)

    def budget(self, target: CudaTarget) -> Budget:
        return Budget(
            min(255, 65536 // self.threads, 40 + self.work // 8),
            160 + 2 * self.work,
            {"LDG.E.128": self.vector_loads, "STG.E.128": self.vector_stores},
        )


def write_rows(body: Graph, packed: Collection[Value] = ()) -> RowsParams:
    """The kernel of a rows body. IRError names a node that has no CUDA code.

    `packed`: those of the body's inputs that are arrays of the step (ids, positions, seqs, rows: i32[T] or i32[R]
    without gaps); other values with rows lie row_bytes apart.
    """
    return _Writer(body, packed).write()


class _Writer:
    def __init__(self, body: Graph, packed: Collection[Value]) -> None:
        self.original, self.packed = body, packed
        self.body = expand(body)
        self.users = self.body.users()
        self.memory: dict[Value, Memory] = {}
        self.arguments: list[KernelArgument] = []
        self.lines: list[str] = []

    def write(self) -> RowsParams:
        counter = self.counter()
        self.lines += [
            "grid_wait();",
            "const int row = blockIdx.x;",
            f"if (row >= counts->{counter}) return;",
        ]
        self.inputs()
        self.terms = Terms(self.body, self.memory)
        self.gathers()
        outputs = self.outputs()
        sinks = [*outputs, *self.cache_writes()]
        self.arguments.append(counts())
        plan = plan_loops(self.body, self.memory, sinks)
        threads = max((loop.domain.lanes for loop in plan.loops), default=32)
        smem_bytes = self.shared(plan)
        emitted = emit_loops(plan, threads)
        return RowsParams(
            self.name(),
            counter,
            tuple(self.arguments),
            (*self.lines, *emitted.lines),
            threads,
            smem_bytes,
            emitted.vector_loads,
            emitted.vector_stores,
            emitted.work,
        )

    def name(self) -> str:
        """The ops that say what the kernel is about, and its widest row."""
        ops = [n.op.mnemonic() for n in self.original.nodes if not isinstance(n.op, Scalar)]
        plain = {"view", "permute", "expand", "slice", "unary", "binary", "where", "cast", "gather_rows"}
        kinds = list(dict.fromkeys(op for op in ops if op not in plain)) or list(dict.fromkeys(ops)) or ["copy"]
        values = [v for v in (*self.original.inputs, *self.original.outputs) if isinstance(v.type, TensorType)]
        width = max((prod(v.tensor.row_shape()) for v in values if v.tensor.is_rowed), default=1)
        return f"{'_'.join(kinds)[:48]}_w{width}"

    def counter(self) -> str:
        values = [v for v in (*self.body.outputs, *self.body.inputs) if isinstance(v.type, TensorType)]
        rowed = next((v for v in values if v.tensor.is_rowed), None)
        symbol = row_symbol(rowed.tensor) if rowed else ""
        if symbol not in _COUNTERS:
            raise IRError(f"rows kernel: its rows are counted by {symbol or 'nothing'}, expected T or R")
        return _COUNTERS[symbol]

    # --- memory of the arguments

    def inputs(self) -> None:
        for index, value in enumerate(self.body.inputs):
            if isinstance(value.type, CacheType):
                continue
            type_ = value.tensor
            name = _argument_name(value, index)
            if type_.dtype not in _STORED_INPUTS or (type_.layout is not None and not self.is_table(value)):
                raise IRError(f"rows kernel: no code reads %{value.name} of {type_}")
            cpp = stored_type(type_.dtype)
            self.arguments.append(KernelArgument(name, f"const {cpp}*", Input(index), str(type_)))
            if not type_.is_rowed:
                self.memory[value] = Memory(name, type_.dtype, Space.GLOBAL, prod(type_.row_shape()))
                continue
            self.memory[value] = Memory(f"{name}_row", type_.dtype, Space.GLOBAL, prod(type_.row_shape()))
        for index, value in enumerate(self.body.inputs):
            if value in self.memory and value.tensor.is_rowed:
                name, cpp = _argument_name(value, index), stored_type(value.tensor.dtype)
                stride = value.tensor.dtype.num_bytes if value in self.packed else row_bytes(value.tensor)
                pointer = f"row_of({name}, {self.row_read(value)}, {stride})"
                self.lines.append(f"const {cpp}* {name}_row = {pointer};")

    def is_table(self, value: Value) -> bool:
        """Does nothing but an embedding read the value, which lies row by row?"""
        layout = value.tensor.layout
        readers = self.users.get(value, [])
        only = all(isinstance(n.op, Embedding) and n.inputs[0] is value and len(n.inputs) == 2 for n in readers)
        return isinstance(layout, Packed) and layout.order is WeightLayout.ROWS and only

    def row_read(self, value: Value) -> str:
        """The row of an input that row `row` of the kernel reads: its own, or the one a gather names."""
        gathers = [n for n in self.users.get(value, []) if isinstance(n.op, GatherRows) and n.inputs[0] is value]
        if not gathers:
            return "row"
        rows = gathers[0].inputs[1]
        if len(self.users[value]) != len(gathers) or value in self.body.outputs:
            raise IRError(f"rows kernel: %{value.name} is read both whole and gathered")
        if rows not in self.body.inputs or any(g.inputs[1] is not rows for g in gathers):
            raise IRError(f"rows kernel: %{value.name} is gathered by %{rows.name}, expected one input")
        index = self.body.inputs.index(rows)
        stride = 4 if rows in self.packed else row_bytes(rows.tensor)
        return f"*row_of({_argument_name(rows, index)}, row, {stride})"

    def gathers(self) -> None:
        """A pointer to each table row that an embedding reads."""
        for number, node in enumerate(n for n in self.body.nodes if isinstance(n.op, Embedding)):
            table, ids, *scales = node.inputs
            if scales or table not in self.memory:
                raise IRError(f"{node.op.mnemonic()} at {node.loc or 'no module'}: no CUDA code reads {table.type}")
            width = _width(node)
            layout = table.tensor.layout
            stride = Packing(layout.scheme, layout.order).pad_k(width) if isinstance(layout, Packed) else width
            dtype = table.tensor.dtype
            vector = width % 8 != 0 or (stride * dtype.num_bytes) % 16 == 0
            assert vector, "rows of whole vectors are whole multiples of 16 bytes"
            name, at = f"table_row_{number}", self.scalar(ids)
            source = f"row_of({self.memory[table].name}, {at}, {stride * dtype.num_bytes})"
            self.lines.append(f"const {stored_type(dtype)}* {name} = {source};")
            self.memory[node.output] = Memory(name, dtype, Space.GLOBAL, width)

    def scalar(self, value: Value) -> str:
        """A variable with an integer of the row, computed from inputs alone."""
        if prod(value.tensor.row_shape()) != 1:
            raise IRError(f"rows kernel: %{value.name} of {value.type} is not one integer per row")
        term = self.terms.of(value, ())
        text: dict[int, str] = {}
        for t in reversed(list(visit(term))):
            if isinstance(t, Load):
                text[id(t)] = f"get({t.memory.name}, {t.key.offset})"
        return _scalar_text(term, text)

    def outputs(self) -> list[Sink]:
        sinks = []
        for index, value in enumerate(self.original.outputs):
            if isinstance(value.type, CacheType):
                continue
            type_ = value.tensor
            if type_.dtype not in _STORED_INPUTS or type_.layout is not None or not type_.is_rowed:
                raise IRError(f"rows kernel: no code writes %{value.name} of {type_}")
            cpp = stored_type(type_.dtype)
            self.arguments.append(KernelArgument(f"out_{index}", f"{cpp}*", Output(index), str(type_)))
            self.lines.append(f"{cpp}* out_{index}_row = row_of(out_{index}, row, {row_bytes(type_)});")
            shape = type_.row_shape()
            memory = Memory(f"out_{index}_row", type_.dtype, Space.GLOBAL, prod(shape))
            sinks.append(Sink(value, memory, dense(shape)))
        return sinks

    def cache_writes(self) -> list[Sink]:
        writes = [n for n in self.body.nodes if isinstance(n.op, KvWrite)]
        sinks: list[Sink] = []
        for number, node in enumerate(writes):
            sinks += self.cache_write(number, node)
        return sinks

    def cache_write(self, number: int, node: Node) -> list[Sink]:
        op = node.op
        assert isinstance(op, KvWrite)
        _, k, v, positions, seqs = node.inputs
        (heads, key_dim), (_, value_dim) = k.tensor.row_shape(), v.tensor.row_shape()
        try:
            slot = CudaKvSlot(heads, key_dim, value_dim, op.dtype, 0)
        except ValueError as error:
            raise IRError(f"kv_write at {node.loc or 'no module'}: {error}") from None
        self.arguments += [
            KernelArgument(f"pool_{number}", "unsigned char*", Slot(Part.POOL, number)),
            KernelArgument(f"block_bytes_{number}", "long long", Slot(Part.BLOCK_BYTES, number)),
            KernelArgument(f"offset_{number}", "long long", Slot(Part.OFFSET, number)),
            KernelArgument(f"tables_{number}", "const int*", Slot(Part.TABLES, number), "i32[S, table_stride]"),
        ]
        place, position = f"place_{number}", f"position_{number}"
        self.lines += [
            f"const int {position} = {self.scalar(positions)};",
            f"const int {place} = tables_{number}[{self.scalar(seqs)} * counts->table_stride + {position} / kKvBlock];",
            f"const {slot.cpp} slot_{number}{{pool_{number}, block_bytes_{number}, offset_{number}}};",
        ]
        sinks = []
        dims = ((k, "key", key_dim, slot.padded_head_dim), (v, "value", value_dim, slot.padded_value_dim))
        for value, part, dim, padded in dims:
            name = f"{part}_{number}"
            first = f"slot_{number}.{part}({place}, 0, {position} % kKvBlock)"
            self.lines.append(f"{stored_type(op.dtype)}* {name} = {first};")
            memory = Memory(name, op.dtype, Space.GLOBAL, heads * KV_BLOCK * padded)
            sinks.append(Sink(value, memory, Strided(0, (heads, dim), (KV_BLOCK * padded, 1))))
            if padded > dim:
                rest = Strided(dim, (heads, padded - dim), (KV_BLOCK * padded, 1))
                sinks.append(Sink(self.zero(), memory, rest))
        return sinks

    def zero(self) -> Value:
        """A constant 0 of the body."""
        node = Node(Scalar(0.0), (), (Value(TensorType(DType.F32, ()), "zero"),))
        self.body = Graph(self.body.name, self.body.inputs, self.body.outputs, (*self.body.nodes, node))
        return node.output

    # --- shared memory

    def shared(self, plan: LoopPlan) -> int:
        """Declares every shared memory of the plan; those that are needed at different times may share bytes."""
        if not plan.shared:
            return 0
        lives = [
            Life(m.name, RowKind.TOKEN, m.size * _SHARED_BYTES[m.dtype], *levels) for m, levels in plan.shared.items()
        ]
        placed = place_buffers(lives)
        self.lines.append("LLMC_SMEM(smem);")
        for memory in plan.shared:
            offset, cpp = placed.placements[memory.name].offset, stored_type(memory.dtype)
            self.lines.append(f"{cpp}* {memory.name} = reinterpret_cast<{cpp}*>(smem + {offset});")
        return placed.per_token


_STORED_INPUTS = (DType.F32, DType.BF16, DType.F16, DType.I32, DType.I64, DType.BOOL)
_SHARED_BYTES = {DType.F32: 4, DType.I32: 4, DType.BOOL: 1}


def _scalar_text(term: Term, text: dict[int, str]) -> str:
    if isinstance(term, Number):
        return term.text
    if isinstance(term, Load):
        return text[id(term)]
    return expression(term.node, [_scalar_text(a, text) for a in term.args])


def _width(node: Node) -> int:
    width = node.inputs[0].tensor.static_shape()[1]
    return int(width)


def _argument_name(value: Value, index: int) -> str:
    """A C++ name that is the same in every layer: rows are x, weights go by the last part of their name."""
    rowed = value.tensor.is_rowed and value.tensor.rank > 1
    stem = "x" if rowed else re.sub(r"\W|_?\d+", "_", value.name.rpartition(".")[2]).strip("_")
    return f"{stem or 'w'}_{index}"
