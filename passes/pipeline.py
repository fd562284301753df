"""The order of the passes, in full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from llmc.ir.formats import Scheme, WeightLayout
from llmc.ir.graph import Graph, IRError
from llmc.ir.parser import ParseError, parse_attributes
from llmc.ir.types import DType
from llmc.ir.verify import Stage, verify
from llmc.passes.canonicalise import Canonicalise
from llmc.passes.choose_formats import ChooseFormats
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
from llmc.passes.stages import CAPTURED, FUSED, KERNELS, LOWERED, PAGED, RAISED, SAMPLED, TOKENS
from llmc.passes.tokens import Flatten


class Pass(Protocol):
    """Valid graph in, valid graph out. Its dataclass fields are its options."""

    def run(self, graph: Graph, log: RuleLog) -> Graph: ...


Observe = Callable[[str, Graph], None]
"""Told the name of each pass (with the entry it ran for) and the graph after it."""


@dataclass(frozen=True)
class Phase:
    """Passes after each of which a graph holds ops of the stage alone."""

    stage: Stage
    passes: tuple[Pass, ...]


@dataclass(frozen=True)
class Pipeline:
    """Phases of the captured graph, then phases of the graph of each entry."""

    shared: tuple[Phase, ...]
    per_entry: tuple[Phase, ...]

    @property
    def passes(self) -> tuple[Pass, ...]:
        """All of them, in order."""
        return tuple(step for phase in (*self.shared, *self.per_entry) for step in phase.passes)

    def each(self, change: Callable[[Pass], Pass | None]) -> Pipeline:
        """With every pass changed, or left out where `change` gives None."""

        def of(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
            changed = [(phase.stage, tuple(filter(None, map(change, phase.passes)))) for phase in phases]
            return tuple(Phase(stage, passes) for stage, passes in changed if passes)

        return Pipeline(of(self.shared), of(self.per_entry))


def default_pipeline(
    scheme: Scheme,
    num_valid_tokens: int,
    layout: WeightLayout = WeightLayout.PANELS,
    as_stored: bool = False,
    kv: DType | None = None,
) -> Pipeline:
    """Every pass that a build runs. `layout` tells whose kernels the entries are lowered for: a CPU's, or CUDA's.
    `as_stored`: weights that are stored quantised stay so, whatever the scheme. `kv`: what the KV cache is kept in,
    where that is not what the scheme stores."""
    cuda = layout is WeightLayout.ROWS
    return Pipeline(
        shared=(
            # one way to write each thing; outer products become muls, which flattening can keep per token
            Phase(CAPTURED, (Canonicalise(),)),
            # before raising, so that each rule needs one spelling, with no batch and sequence axes to skip
            Phase(TOKENS, (Flatten(), Canonicalise())),
            # linears first, because slices of a joined q, k, v must reach them before RoPE reads the parts;
            # rope tables of all layers are one, once they look the same
            Phase(RAISED, (RaiseLinears(), RaiseNorms(), RaiseRope(), Canonicalise())),
            # while each linear still stands alone, under its own name
            Phase(SAMPLED, (SampleRows(num_valid_tokens), ChooseFormats(scheme, (), as_stored, _head(scheme)))),
        ),
        per_entry=(
            # gates before the rest, which would join gate and up like q, k and v
            Phase(FUSED, (FuseGates(), FuseLinears())),
            # after fusion, which looks at linears only; before rows, which hold the writes
            Phase(PAGED, (KvLayout(kv or scheme.stored, query=scheme.stored if cuda else DType.F32),)),
            # weights packed, epilogues taken; equal casts and quantisations of one value merge after it
            Phase(LOWERED, (LowerLinears(scheme.stored, layout, as_stored), Canonicalise())),
            # attention once the linear after it has said what it reads, and before rows would take that in
            *([Phase(LOWERED, (FuseAttention(),))] if cuda else []),
            Phase(KERNELS, (FuseRows(),)),
        ),
    )


def _head(scheme: Scheme) -> Scheme | None:
    """Of the head, and of the embedding that shares its table, where it is not the scheme's: int4 there costs a fifth
    of the KL that it costs in all other linears together (SmolLM2-135M: 0.13 beside 0.67), int8 0.001."""
    return Scheme.INT8 if scheme.weight.element.num_bits == 4 else None


def run_pipeline(graph: Graph, pipeline: Pipeline, log: RuleLog, observe: Observe) -> list[Graph]:
    """The kernel-level graphs of prefill and decode. IRError names the pass that failed and those before."""
    done: list[str] = []

    def apply(step: Pass, stage: Stage, graph: Graph) -> Graph:
        name = f"{graph.name}.{pass_name(type(step))}"
        try:
            graph = step.run(graph, log)
            verify(graph, stage)
        except IRError as error:
            raise IRError(f"pass {name} (after {', '.join(done) or 'no other'}): {error}") from error
        done.append(name)
        observe(name, graph)
        return graph

    def run(phases: tuple[Phase, ...], graph: Graph) -> Graph:
        for phase in phases:
            for step in phase.passes:
                graph = apply(step, phase.stage, graph)
        return graph

    verify(graph, CAPTURED)
    graph = run(pipeline.shared, graph)
    prefill = Graph("prefill", graph.inputs, graph.outputs, graph.nodes)
    return [run(pipeline.per_entry, entry) for entry in (prefill, decode_entry(prefill))]


def run_until_formats(graph: Graph, pipeline: Pipeline) -> Graph:
    """The captured graph as it is when formats are chosen: each linear by itself, under its module's name."""
    log = RuleLog()
    for step in (step for phase in pipeline.shared for step in phase.passes):
        if isinstance(step, ChooseFormats):
            break
        graph = step.run(graph, log)
    return graph


PASSES: tuple[type, ...] = (
    Canonicalise,
    Flatten,
    RaiseLinears,
    RaiseNorms,
    RaiseRope,
    SampleRows,
    ChooseFormats,
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
    """The pipeline with options of passes changed, or passes left out: `choose-formats{scheme=int8}, -fuse-gates`.

    ValueError names an unknown pass or option.
    """
    known = {pass_name(cls): cls for cls in PASSES}
    present = {type(step): step for step in pipeline.passes}
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
            replaced[cls] = parse_attributes(cls, given, present.get(cls))  # type: ignore[assignment]
        except ParseError as error:
            raise ValueError(f"--passes: {item!r}: {error}") from error

    return pipeline.each(lambda step: None if type(step) in dropped else replaced.get(type(step), step))


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
