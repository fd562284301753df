"""The order of the passes, in full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from llmc.ir.graph import Graph, IRError
from llmc.ir.ops.kernel import Scheme, WeightLayout
from llmc.ir.parser import ParseError, parse_attributes
from llmc.ir.types import DType
from llmc.ir.verify import verify
from llmc.passes.canonicalise import Canonicalise
from llmc.passes.entries import SampleRows, decode_entry
from llmc.passes.fuse_attention import FuseAttention
from llmc.passes.fuse_rows import FuseRows
from llmc.passes.gates import FuseGates
from llmc.passes.kv import KvLayout
from llmc.passes.linears import FuseLinears, RaiseLinears
from llmc.passes.lower import LowerLinears
from llmc.passes.raise_norms import RaiseNorms
from llmc.passes.raise_rope import RaiseRope
from llmc.passes.rewrite import RuleLog
from llmc.passes.tokens import Flatten


class Pass(Protocol):
    """Valid graph in, valid graph out. Its dataclass fields are its options."""

    def run(self, graph: Graph, log: RuleLog) -> Graph: ...


Observe = Callable[[str, Graph], None]
"""Told the name of each pass (with the entry it ran for) and the graph after it."""


@dataclass(frozen=True)
class Pipeline:
    """Passes on the captured graph, then passes on the graph of each entry."""

    shared: tuple[Pass, ...]
    per_entry: tuple[Pass, ...]


def default_pipeline(
    scheme: Scheme, group: int, num_valid_tokens: int, layout: WeightLayout = WeightLayout.PANELS
) -> Pipeline:
    """Every pass that a build runs. `layout` tells whose kernels the entries are lowered for: a CPU's, or CUDA's."""
    cuda = layout is WeightLayout.ROWS
    return Pipeline(
        shared=(
            # captured: one way to write each thing; outer products become muls, which flattening can keep per token
            Canonicalise(),
            # tokens: before raising, so that each rule needs one spelling, with no batch and sequence axes to skip
            Flatten(),
            Canonicalise(),
            # raise: linears first, because slices of a joined q, k, v must reach them before RoPE reads the parts
            RaiseLinears(),
            RaiseNorms(),
            RaiseRope(),
            # rope tables of all layers are one, once they look the same
            Canonicalise(),
            SampleRows(num_valid_tokens),
        ),
        per_entry=(
            # fuse: gates before the rest, which would join gate and up like q, k and v
            FuseGates(),
            FuseLinears(),
            # kv: after fusion, which looks at linears only; before rows, which hold the writes
            KvLayout(scheme.stored, query=scheme.stored if cuda else DType.F32),
            # lower: weights packed, epilogues taken; equal casts and quantisations of one value merge after it
            LowerLinears(scheme, group, layout),
            Canonicalise(),
            # attention: once the linear after it has said what it reads, and before rows would take that in
            *([FuseAttention()] if cuda else []),
            FuseRows(),
        ),
    )


def run_pipeline(graph: Graph, pipeline: Pipeline, log: RuleLog, observe: Observe) -> list[Graph]:
    """The kernel-level graphs of prefill and decode. IRError names the pass that failed and those before."""
    done: list[str] = []

    def apply(step: Pass, graph: Graph) -> Graph:
        name = f"{graph.name}.{pass_name(type(step))}"
        try:
            graph = step.run(graph, log)
            verify(graph)
        except IRError as error:
            raise IRError(f"pass {name} (after {', '.join(done) or 'no other'}): {error}") from error
        done.append(name)
        observe(name, graph)
        return graph

    verify(graph)
    for step in pipeline.shared:
        graph = apply(step, graph)
    prefill = Graph("prefill", graph.inputs, graph.outputs, graph.nodes)
    entries = []
    for entry in (prefill, decode_entry(prefill)):
        for step in pipeline.per_entry:
            entry = apply(step, entry)
        entries.append(entry)
    return entries


PASSES: tuple[type, ...] = (
    Canonicalise,
    Flatten,
    RaiseLinears,
    RaiseNorms,
    RaiseRope,
    SampleRows,
    FuseGates,
    FuseLinears,
    KvLayout,
    LowerLinears,
    FuseAttention,
    FuseRows,
)


def pass_name(cls: type) -> str:
    """fuse-gates for FuseGates."""
    return "".join("-" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(cls.__name__))


def with_options(pipeline: Pipeline, text: str) -> Pipeline:
    """The pipeline with passes replaced or left out: `lower-linears{scheme=int8, group=64}, -fuse-gates`.

    ValueError names an unknown pass or option.
    """
    known = {pass_name(cls): cls for cls in PASSES}
    dropped: set[type] = set()
    replaced: dict[type, Pass] = {}
    for item in _items(text):
        name, brace, attributes = item.removeprefix("-").partition("{")
        cls = known.get(name.strip())
        if cls is None:
            raise ValueError(f"--passes: unknown pass {name.strip()!r}, there are {', '.join(known)}")
        if item.startswith("-"):
            if brace:
                raise ValueError(f"--passes: {item!r} leaves a pass out and gives it options")
            dropped.add(cls)
            continue
        try:
            # in its place, so that columns are those of the item
            given = brace.rjust(len(name) + len(brace)) + attributes
            replaced[cls] = parse_attributes(cls, given)  # type: ignore[assignment]
        except ParseError as error:
            raise ValueError(f"--passes: {item!r}: {error}") from error

    def chosen(steps: Sequence[Pass]) -> tuple[Pass, ...]:
        return tuple(replaced.get(type(s), s) for s in steps if type(s) not in dropped)

    return Pipeline(chosen(pipeline.shared), chosen(pipeline.per_entry))


def _items(text: str) -> list[str]:
    items, depth, start = [], 0, 0
    for i, c in enumerate(text + ","):
        depth += (c == "{") - (c == "}")
        if c == "," and depth == 0:
            if text[start:i].strip():
                items.append(text[start:i].strip())
            start = i + 1
    if depth:
        raise ValueError(
            f"--passes: {'{' if depth > 0 else '}'!r} without {'}' if depth > 0 else '{'!r} in {text[start:]!r}"
        )
    return items
