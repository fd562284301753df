"""Loops of a rows kernel -> C++ text over the functions of `templates/cuda/rows.cuh`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import prod

from llmc.codegen.cuda.expression import cpp_type, expression
from llmc.codegen.cuda.rows.loops import VECTOR, Domain, Loop, LoopPlan, Path, Reduction, Store, keeps
from llmc.codegen.cuda.rows.terms import Compute, Load, Memory, Number, Space, Term, own_cost
from llmc.codegen.strided import Strided
from llmc.ir.graph import Value
from llmc.ir.ops.reduce import ReduceFn
from llmc.ir.types import DType

MAX_KEPT = 64  # registers of a thread that hold values from one loop to a later one
_COMBINE = {
    ReduceFn.SUM: "Sum",
    ReduceFn.MEAN: "Sum",
    ReduceFn.MAX: "Max",
    ReduceFn.MIN: "Min",
}
_STORED = {
    DType.F32: "float",
    DType.BF16: "bf16",
    DType.F16: "f16",
    DType.I32: "int",
    DType.I64: "int",
    DType.BOOL: "unsigned char",
}


def stored_type(dtype: DType) -> str:
    """The C++ type of an element in memory. KeyError for types that no rows kernel stores."""
    return _STORED[dtype]


@dataclass
class Emitted:
    """Text of the levels, and what it holds: 16-byte accesses of global memory, instructions of a thread roughly."""

    lines: list[str] = field(default_factory=list)
    vector_loads: int = 0
    vector_stores: int = 0
    work: int = 0


def emit_loops(plan: LoopPlan, threads: int) -> Emitted:
    return _Emitter(plan, threads).run()


class _Emitter:
    def __init__(self, plan: LoopPlan, threads: int) -> None:
        self.plan, self.threads = plan, threads
        self.out = Emitted()
        self.kept: dict[tuple[Domain, Value], str] = {}
        self.first: dict[Loop, list[Value]] = {}
        self.kinds: dict[Value, str] = {}

    def run(self) -> Emitted:
        self.choose_kept()
        last = self.plan.num_levels - 1
        for level in range(last + 1):
            if level:
                self.out.lines.append("__syncthreads();")
                self.totals(level - 1)
            if level == last:
                self.out.lines.append("grid_launch_dependents();")
            for loop in self.plan.loops:
                if loop.level == level:
                    body = self.warps(loop) if loop.domain.segments else self.flat(loop)
                    self.out.lines += body
        return self.out

    def choose_kept(self) -> None:
        """Values that later loops over the same elements need again stay in registers, whole terms at a time."""
        made: dict[Domain, dict[Value, Loop]] = {}
        registers = 0
        for loop in self.plan.loops:
            domain = loop.domain
            if not keeps(domain):
                continue
            before = dict(made.get(domain, {}))
            stack: list[Term] = [item.term for item in loop.items]
            seen: set[int] = set()
            while stack:
                term = stack.pop()
                if isinstance(term, Number) or id(term) in seen:
                    continue
                seen.add(id(term))
                if isinstance(term, Load) and term.memory.space is Space.SCALAR:
                    continue
                if term.key.whole and term.key.size == domain.size:
                    maker = before.get(term.value)
                    if (domain, term.value) in self.kept:
                        continue
                    size = domain.rounds * domain.vector
                    if maker is not None and maker.level < loop.level and registers + size <= MAX_KEPT:
                        registers += size
                        name = f"kept_{len(self.kept)}"
                        self.kept[domain, term.value] = name
                        self.first.setdefault(maker, []).append(term.value)
                        kind = cpp_type(term.value.tensor.dtype)
                        self.out.lines.append(f"{kind} {name}[{domain.rounds}][{domain.vector}];")
                        continue
                    made.setdefault(domain, {}).setdefault(term.value, loop)
                if isinstance(term, Compute):
                    stack += term.args

    def totals(self, level: int) -> None:
        for loop in self.plan.loops:
            for item in loop.items if loop.level == level else ():
                if isinstance(item, Reduction) and item.partial is not None:
                    total = f"total_of<{_COMBINE[item.fn]}, {item.partial.size}>({item.partial.name})"
                    mean = f" / {float(item.width)}f" if item.fn is ReduceFn.MEAN else ""
                    self.out.lines.append(f"const float {item.memory.name} = {total}{mean};")

    # --- loops over elements in turn

    def flat(self, loop: Loop) -> list[str]:
        domain = loop.domain
        vectors = domain.size // domain.vector
        reductions = [i for i in loop.items if isinstance(i, Reduction)]
        segments = [r for r in reductions if r.path is Path.SEGMENT]
        whole = [r for r in reductions if r.path is Path.BLOCK]
        body = _Body(self, loop)
        inner = body.lines(loop.items)
        unrolled = domain.rounds if keeps(domain) else 1
        # The compiler unrolls other loops as well, four times at most.
        self.out.work += body.work * (unrolled if keeps(domain) else min(domain.rounds, 4))
        self.out.vector_loads += body.vector_loads * unrolled
        self.out.vector_stores += body.vector_stores * unrolled
        tail = domain.rounds * domain.lanes != vectors
        conditions = []
        if domain.lanes < self.threads and not (tail and domain.rounds == 1):  # where j is threadIdx.x
            conditions.append(f"threadIdx.x < {domain.lanes}")
        if tail:
            conditions.append(f"j < {vectors}")
        at = "const int i = j * 8;" if domain.vector == VECTOR else "const int i = j;"
        if any(re.search(r"\bi\b", line) for line in inner):
            inner.insert(0, at)
        guarded = [f"if ({' && '.join(conditions)}) {{" if conditions else "{", *_indent(inner), "}"]
        lines = [f"// {domain.size} elements, {domain.vector} to a thread at once"]
        for r in whole:
            lines.append(f"float {_sum_name(r)} = {_COMBINE[r.fn]}::identity();")
        kept = any(v for v in self.first.get(loop, [])) or body.uses_kept
        if domain.rounds == 1:
            head, k = "{", ["const int k = 0, j = threadIdx.x;"] if kept else ["const int j = threadIdx.x;"]
        else:
            if keeps(domain):
                lines.append("LLMC_UNROLL")
            head = f"for (int k = 0; k < {domain.rounds}; k++) {{"
            k = [f"const int j = threadIdx.x + k * {domain.lanes};"]
        lines += [head, *_indent(k)]
        lines += [f"  float {_sum_name(r)} = {_COMBINE[r.fn]}::identity();" for r in segments]
        lines += _indent(guarded)
        for r in segments:
            group = r.width // VECTOR
            mean = f" / {float(r.width)}f" if r.fn is ReduceFn.MEAN else ""
            lines.append(f"  {_sum_name(r)} = over_lanes<{_COMBINE[r.fn]}, {group}>({_sum_name(r)});")
            leader = " && ".join([*conditions, f"j % {group} == 0"] if group > 1 else conditions)
            store = f"{r.memory.name}[j / {group}] = {_sum_name(r)}{mean};"
            lines.append(f"  if ({leader}) {store}" if leader else f"  {store}")
        lines.append("}")
        for r in whole:
            assert r.partial is not None
            inside = f"threadIdx.x < {domain.lanes}" if domain.lanes < self.threads else ""
            call = f"leave_total<{_COMBINE[r.fn]}>({_sum_name(r)}, {r.partial.name});"
            lines.append(f"if ({inside}) {call}" if inside else call)
        return lines

    # --- a warp for each reduction

    def warps(self, loop: Loop) -> list[str]:
        domain = loop.domain
        width = domain.size // domain.segments
        lines = [
            f"// a warp for each of {domain.segments} times {width} elements",
            f"for (int o = threadIdx.x / 32; o < {domain.segments}; o += {self.threads // 32}) {{",
        ]
        reductions = [i for i in loop.items if isinstance(i, Reduction)]
        lines += [f"  float {_sum_name(r)} = {_COMBINE[r.fn]}::identity();" for r in reductions]
        body = _Body(self, loop)
        inner = [f"const int i = o * {width} + c;", *body.lines(loop.items)]
        self.out.work += body.work + 20
        lines += [f"  for (int c = threadIdx.x % 32; c < {width}; c += 32) {{", *_indent(_indent(inner)), "  }"]
        for r in reductions:
            mean = f" / {float(r.width)}f" if r.fn is ReduceFn.MEAN else ""
            lines.append(f"  {_sum_name(r)} = over_lanes<{_COMBINE[r.fn]}, 32>({_sum_name(r)});")
            lines.append(f"  if (threadIdx.x % 32 == 0) {r.memory.name}[o] = {_sum_name(r)}{mean};")
        return [*lines, "}"]


class _Body:
    """The text that handles the `vector` elements from element i on."""

    def __init__(self, emitter: _Emitter, loop: Loop) -> None:
        self.emitter, self.loop, self.domain = emitter, loop, loop.domain
        self.before: list[str] = []  # once for the vector
        self.each: list[str] = []  # for element e of it
        self.after: list[str] = []
        self.text: dict[int, str] = {}
        self.names = 0
        self.work = self.vector_loads = self.vector_stores = 0
        self.uses_kept = False
        self.keep = set(emitter.first.get(loop, []))

    @property
    def vector(self) -> bool:
        return self.domain.vector == VECTOR

    def lines(self, items: list[Store | Reduction]) -> list[str]:
        for item in items:
            value = self.value(item.term)
            if isinstance(item, Reduction):
                name = _sum_name(item)
                self.each.append(f"{name} = {_COMBINE[item.fn]}::of({name}, {value});")
                self.work += 2 * self.domain.vector
            else:
                self.store(item, value)
        if not self.vector:
            return [*self.before, *self.each, *self.after]
        each = ["LLMC_UNROLL", "for (int e = 0; e < 8; e++) {", *_indent(self.each), "}"] if self.each else []
        return [*self.before, *each, *self.after]

    def fresh(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names - 1}"

    def value(self, term: Term) -> str:
        """C++ text of the term's element, declared before its first use."""
        if isinstance(term, Number):
            return term.text
        # arguments first, without recursion: terms of long chains are deep
        stack: list[Load | Compute] = [term]
        while stack:
            top = stack[-1]
            if id(top) in self.text:
                stack.pop()
                continue
            name = self.emitter.kept.get((self.domain, top.value)) if self.is_element(top) else None
            if name is not None and top.value not in self.keep:
                self.uses_kept = True
                self.text[id(top)] = f"{name}[k]{'[e]' if self.vector else '[0]'}"
                continue
            if isinstance(top, Load):
                self.text[id(top)] = self.load(top)
                continue
            missing = [a for a in top.args if not isinstance(a, Number) and id(a) not in self.text]
            if missing:
                stack += reversed(missing)
                continue
            self.text[id(top)] = self.compute(top)
        return self.text[id(term)]

    def is_element(self, term: Load | Compute) -> bool:
        return term.key.whole and term.key.size == self.domain.size

    def compute(self, term: Compute) -> str:
        args = [a.text if isinstance(a, Number) else self.text[id(a)] for a in term.args]
        name = self.fresh("v")
        same = self.vector and term.key.inner_stride == 0
        line = f"const {cpp_type(term.value.tensor.dtype)} {name} = {expression(term.node, args)};"
        (self.before if same else self.each).append(line)
        self.work += own_cost(term.node) * (1 if same else self.domain.vector)
        return self.remembered(term, name)

    def remembered(self, term: Load | Compute, name: str) -> str:
        if self.is_element(term) and term.value in self.keep:
            kept = self.emitter.kept[self.domain, term.value]
            self.each.append(f"{kept}[k]{'[e]' if self.vector else '[0]'} = {name};")
        return name

    def load(self, term: Load) -> str:
        memory, kind = term.memory, cpp_type(term.memory.dtype)
        if memory.space is Space.SCALAR:
            return memory.name
        name = self.fresh("x")
        if not self.vector:
            self.each.append(f"const {kind} {name} = get({memory.name}, {_index(term.key, 'i')});")
            self.work += 4
            return self.remembered(term, name)
        if self.in_vectors(term.key):
            self.work += 8
            self.vector_loads += _accesses(memory)
            source = f"{memory.name} + {_index(term.key, 'i')}"
            if self.is_element(term) and term.value in self.keep:
                kept = self.emitter.kept[self.domain, term.value]
                self.before.append(f"{_eight('get8', memory)}({kept}[k], {source});")
                return f"{kept}[k][e]"
            self.before.append(f"{kind} {name}[8];")
            self.before.append(f"{_eight('get8', memory)}({name}, {source});")
            return f"{name}[e]"
        if term.key.inner_stride == 0:
            self.before.append(f"const {kind} {name} = get({memory.name}, {_index(term.key, 'i')});")
            self.work += 4
            return name
        self.each.append(f"const {kind} {name} = get({memory.name}, {_index(term.key, 'i + e')});")
        self.work += 6 * VECTOR
        return self.remembered(term, name)

    def in_vectors(self, at: Strided) -> bool:
        """Do the eight elements lie side by side on a boundary of eight?"""
        dims = at.collapsed()
        outer = all(stride % VECTOR == 0 for _, stride in dims[:-1])
        return at.offset % VECTOR == 0 and outer and at.inner_stride == 1

    def store(self, item: Store, value: str) -> None:
        memory = item.memory
        if not self.vector:
            self.each.append(f"put({memory.name}, {_index(item.at, 'i')}, {value});")
            self.work += 4
        elif self.in_vectors(item.at):
            name = self.fresh("y")
            self.before.append(f"{cpp_type(memory.dtype)} {name}[8];")
            self.each.append(f"{name}[e] = {value};")
            self.after.append(f"{_eight('put8', memory)}({memory.name} + {_index(item.at, 'i')}, {name});")
            self.work += 12
            self.vector_stores += _accesses(memory)
        else:
            self.each.append(f"put({memory.name}, {_index(item.at, 'i + e')}, {value});")
            self.work += 6 * VECTOR


def _eight(name: str, memory: Memory) -> str:
    return f"{name}_shared" if memory.space is Space.SHARED else name


def _accesses(memory: Memory) -> int:
    """16-byte accesses of global memory for eight elements."""
    return VECTOR * memory.dtype.num_bytes // 16 if memory.space is Space.GLOBAL else 0


def _index(at: Strided, i: str) -> str:
    """The memory element of the domain's element i."""
    terms = [str(at.offset)] if at.offset else []
    dims = at.collapsed()
    wrapped = f"({i})" if " " in i else i
    for d, (size, stride) in enumerate(dims):
        inner = prod(s for s, _ in dims[d + 1 :])
        if stride == 0:
            continue
        place = f"{wrapped} / {inner}" if inner > 1 else wrapped
        if d:
            place = f"{place} % {size}"
        terms.append(f"({place}) * {stride}" if stride != 1 else f"({place})" if " " in place else place)
    return f"({' + '.join(terms)})" if len(terms) > 1 else terms[0] if terms else "0"


def _sum_name(r: Reduction) -> str:
    return f"sum_{r.memory.name}"


def _indent(lines: list[str]) -> list[str]:
    return ["  " + line for line in lines]
