"""The build driver: model in, engine folder out."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from llmc.codegen.cpu.measured_limits import read_limits
from llmc.codegen.cpu.target import NATIVE
from llmc.codegen.hollow import write_hollow
from llmc.codegen.package import Contents, Facts, to_json, write_engine
from llmc.codegen.weights import PlacedWeight, place_weights, sources, weight_exprs
from llmc.compiler.build_options import BuildError, BuildOptions, check_options
from llmc.compiler.capture.capture import Captured, capture
from llmc.compiler.certify import Certifying
from llmc.compiler.envelope import limits_of, model_length
from llmc.compiler.held import dtypes_of, rounded_again
from llmc.compiler.progress import BYTES, Progress
from llmc.compiler.quality.calibrated import Calibrating
from llmc.compiler.quality.formats import Choice
from llmc.compiler.report import build_report, roofline_of
from llmc.compiler.report_page import render_page
from llmc.compiler.sources.model_source import ModelSource
from llmc.compiler.sources.resolve import open_source
from llmc.compiler.sources.shapes import open_shapes
from llmc.compiler.sources.special_tokens import decide_tokens
from llmc.compiler.targets.backend import Backend, Builder, Lowered
from llmc.ir.formats import Part, WeightLayout
from llmc.ir.graph import Graph
from llmc.ir.ops.constant import Origin
from llmc.ir.ops.kernel import PackedLinear, Sample
from llmc.ir.ops.reduce import Linear
from llmc.ir.printer import print_graph
from llmc.passes.choose_formats import ChooseFormats
from llmc.passes.pipeline import Pipeline, run_pipeline, run_until_formats
from llmc.passes.rewrite import RuleLog
from llmc.runtime.artifact.manifest import GenerationDefaults, Limits, Manifest, ModelSummary, SpecialTokens
from llmc.runtime.errors import InvalidParameter
from llmc.runtime.step.params import SamplingParams, model_defaults

__all__ = ["BuildError", "BuildOptions", "Progress", "build"]


def build(options: BuildOptions, progress: Progress) -> Manifest:
    """Build an engine. Raises SourceError, CaptureError, IRError, BuildError, ToolchainError, TargetError or
    OutputOccupied, OutputUnwritable or DiskFull; then nothing is left at `out` that was not there before."""
    check_options(options)
    targets = options.targets
    builders = {name: target.builder(options.scheme) for name, target in targets.items()}
    measured = read_limits(options.limits) if options.limits else None
    progress.stage("reading the model")
    source = open_shapes(Path(options.model)) if options.hollow else open_source(options.model)
    decided = decide_tokens(source)
    limits = limits_of(options, source)
    plan = _planned(options, source, limits, progress)
    captured = plan.captured
    progress.stage("optimising")
    logs = {layout: RuleLog() for layout in plan.pipelines}
    entries = _optimised(plan, logs, options.dump_ir)
    for target in targets.values():
        _check_schemes(target, entries[target.layout])
    progress.stage("generating kernels")
    exprs = {layout: weight_exprs(found) for layout, found in entries.items()}
    placed = place_weights([e for found in exprs.values() for e in found])
    where = {w.expr: w for w in placed}
    parts, reports = [], {}
    for name, target in targets.items():
        weights = {e: where[e] for e in exprs[target.layout]}
        lowered = Lowered(source.name, entries[target.layout], weights, limits)
        part, reports[name] = builders[name].part(lowered, progress)
        reports[name]["roofline"] = roofline_of(lowered.entries, target, limits, measured)
        parts.append(part)
    facts = _facts(options, limits, source, decided.tokens, captured, parts[0].entries[0], placed, builders.values())
    by_target = {name: logs[target.layout] for name, target in targets.items()}
    notices = [*decided.notices, *source.notices, *rounded_again(where, captured.checkpoint)]
    report = build_report(facts, by_target, reports, source, captured, notices, plan.choice)
    pages = {"report.json": to_json(report), "report.html": render_page(report)}
    contents = Contents(facts, parts, placed, _texts(source) | pages)
    if options.hollow:
        return write_hollow(options.out, contents, captured.buffers)
    certifying = Certifying(source, options, lambda out: _of_this_cpu(options, out, progress), progress)
    packed = _Packed(progress, sum(w.num_bytes for w in placed))
    return write_engine(options.out, contents, captured, packed.advance, certifying.finish)


@dataclass(frozen=True)
class _Plan:
    """What is to be built: the graph, the passes for each layout of weights, and why formats are as they are."""

    captured: Captured
    pipelines: Mapping[WeightLayout, Pipeline]
    choice: Choice | None


def _planned(options: BuildOptions, source: ModelSource, limits: Limits, progress: Progress) -> _Plan:
    """The graph captured, formats chosen and weights rounded by calibration where that is asked for."""
    layouts = dict.fromkeys(target.layout for target in options.targets.values())
    num_valid = _num_valid_tokens(source)
    pipelines = {layout: options.pipeline(num_valid, layout) for layout in layouts}
    progress.stage("capturing the graph")
    captured = capture(source)
    _check_modules(captured.graph, next(iter(pipelines.values())))
    if options.quality is None and not options.gptq:
        return _Plan(captured, pipelines, None)
    calibrating = Calibrating.load(options, source, limits, progress)
    choice = None
    if options.quality is not None:
        choice = calibrating.choose(options.quality, captured, next(iter(pipelines.values())))
        pipelines = {layout: options.pipeline(num_valid, layout, choice.others) for layout in layouts}
    if options.gptq:
        captured = calibrating.round(captured, next(iter(pipelines.values())))
    return _Plan(captured, pipelines, choice)


def _optimised(
    plan: _Plan, logs: Mapping[WeightLayout, RuleLog], dump_ir: Path | None
) -> dict[WeightLayout, list[Graph]]:
    """The final graphs of prefill and decode for each layout."""
    dump = _Dump(dump_ir)
    dump("captured", plan.captured.graph)
    return {
        layout: run_pipeline(plan.captured.graph, pipeline, logs[layout], dump.of(layout, len(plan.pipelines)))
        for layout, pipeline in plan.pipelines.items()
    }


@dataclass
class _Packed:
    """Tells how much of the weights is written."""

    progress: Progress
    total: int
    written: int = 0

    def advance(self, num_bytes: int) -> None:
        if not self.written:
            self.progress.stage("packing weights")
        self.written += num_bytes
        self.progress.amount(self.written, self.total, BYTES)
        if self.written == self.total:
            self.progress.stage("taking checksums, flushing to disk")


def _of_this_cpu(options: BuildOptions, out: Path, progress: Progress) -> Manifest:
    return build(replace(options, target=NATIVE, out=out, certify=0, max_kl=None, dump_ir=None, limits=None), progress)


@dataclass(frozen=True)
class _Dump:
    """Writes the graph after each pass as NN-name.llmc."""

    folder: Path | None
    prefix: str = ""

    def of(self, layout: WeightLayout, num_layouts: int) -> _Dump:
        """For one of several pipelines: its passes are told apart by the layout that they lower to."""
        return replace(self, prefix=f"{layout.value}." if num_layouts > 1 else "")

    def __call__(self, name: str, graph: Graph) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in self.folder.glob("*.llmc"))
        (self.folder / f"{number:02}-{self.prefix}{name}.llmc").write_text(print_graph(graph))


def _check_modules(graph: Graph, pipeline: Pipeline) -> None:
    """BuildError for a pattern of modules that names no linear: what it asks for would not be done."""
    patterns = [at for step in pipeline.passes if isinstance(step, ChooseFormats) for at in step.others]
    if not patterns:
        return
    linears = [node.loc for node in run_until_formats(graph, pipeline).nodes if isinstance(node.op, Linear)]
    for at in patterns:
        if not any(map(at.names, linears)):
            known = dict.fromkeys(re.sub(r"\.\d+\b", ".*", module) for module in linears)
            raise BuildError(f"{at.module}={at.scheme}: no linear has such a name; there are {', '.join(known)}")


def _check_schemes(target: Backend, entries: Sequence[Graph]) -> None:
    """BuildError for what weights are stored in, or a pass was told, where the target has no kernel for it."""
    linears = [n.op for graph in entries for n in graph.nodes if isinstance(n.op, PackedLinear)]
    for scheme in dict.fromkeys(op.scheme for op in linears):
        if (why := target.refuses(scheme)) is not None:
            raise BuildError(f"target {target.name}: {why}; a --dtype of these rounds all weights again")


def _num_valid_tokens(source: ModelSource) -> int:
    """Ids that the tokenizer cannot produce have no text: they are never sampled."""
    vocab = int(source.config.get_text_config().vocab_size)
    return min(vocab, source.tokenizer.num_tokens) if source.tokenizer else vocab


def _version(package: str) -> str:
    """Of an installed package; llmc may run from a checkout that is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _facts(
    options: BuildOptions,
    limits: Limits,
    source: ModelSource,
    tokens: SpecialTokens,
    captured: Captured,
    entry: Graph,
    placed: list[PlacedWeight],
    builders: Iterable[Builder],
) -> Facts:
    (sample,) = (n for n in entry.nodes if isinstance(n.op, Sample))
    assert isinstance(sample.op, Sample)
    vocab_size = int(str(sample.inputs[0].tensor.shape[1]))
    leaves = {s for w in placed for s in sources(w.expr)}
    parameters = {s for s in leaves if s.origin is Origin.PARAMETER and s.part in (None, Part.DATA)}
    versions = {name: _version(name) for name in ("llmc", "transformers", "torch")}
    return Facts(
        producer={**versions, "toolchain": ", ".join(dict.fromkeys(b.toolchain for b in builders))},
        model=ModelSummary(
            name=source.name,
            architecture=captured.model_class,
            dtype=dtypes_of(entry),
            num_parameters=sum(int(np.prod(s.shape)) for s in parameters),
            vocab_size=vocab_size,
            num_valid_tokens=sample.op.num_valid_tokens,
            max_seq_len=model_length(source),
        ),
        limits=limits,
        tokens=tokens,
        generation=_sampling_defaults(source),
    )


def _sampling_defaults(source: ModelSource) -> GenerationDefaults:
    """BuildError for settings under which the engine would refuse every request that states no others."""
    shared = (f.name for f in dataclasses.fields(GenerationDefaults))
    defaults = GenerationDefaults(**{name: getattr(source.generation, name) for name in shared})
    if defaults.stop_strings and source.tokenizer is None:
        raise BuildError(f"{source.path}: its generation settings have stop_strings, but it has no tokenizer")
    try:
        SamplingParams(**model_defaults(defaults))
    except InvalidParameter as error:
        raise BuildError(f"{source.path}: its generation settings cannot be served: {error}") from error
    return defaults


def _texts(source: ModelSource) -> dict[str, str]:
    tokenizer = source.tokenizer
    if tokenizer is None:
        return {}
    texts = {
        "tokenizer.json": tokenizer.tokenizer_json,
        "tokenizer_config.json": tokenizer.tokenizer_config_json,
    }
    if tokenizer.chat_template is not None:
        texts["chat_template.jinja"] = tokenizer.chat_template
    return texts
