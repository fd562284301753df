"""What a build is asked for, and what of it can be refused at once: before torch is imported and the model read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from llmc.codegen.cpu.measured_limits import read_limits
from llmc.codegen.hollow import is_hollow
from llmc.compiler.quality.budget import Budget
from llmc.compiler.sources.given import what_is
from llmc.compiler.targets.backend import Backend
from llmc.compiler.targets.find import find_target
from llmc.compiler.targets.limits import check_limits
from llmc.ir.formats import KV_NAMES, Scheme, WeightLayout
from llmc.ir.parser import ParseError
from llmc.ir.types import DType
from llmc.passes.choose_formats import At, ChooseFormats
from llmc.passes.pipeline import Pipeline, default_pipeline, with_options
from llmc.runtime.artifact.artifact import is_engine
from llmc.runtime.artifact.atomic_folder import check_output, check_writable

STEP_TOKENS = 512


class BuildError(Exception):
    """A build that cannot be done as asked; the message is one line for people."""


@dataclass(frozen=True)
class BuildOptions:
    """What to build. `target`: one or several, with commas. `passes`: changes to the pipeline (passes/pipeline.py).
    `step_tokens`: most tokens of one step, which prompts are cut into. `dump_ir`: a folder for the graph at every
    stage. `limits`: what bench/cpu/limits.py measured on the CPU target, for the report. `hollow`: of the model's
    config.json alone, without weights, which are filled in where the engine runs (codegen/hollow.py). `as_stored`:
    weights that are stored quantised stay so, whatever the scheme. `certify`: how many tokens of text the engine is
    measured on against its source; None: the usual number, if that costs no second build. `max_kl`: the mean KL from
    the source that an engine may have. `quality`: what the formats of linears may cost; those that are worth more bits
    than `scheme` has get more, by what they cost over the text of the file `calibrate`, or over the built-in one.
    `gptq`: weights are rounded for the inputs that they have over that text. `at`: formats of modules by patterns of
    their names, whatever else is said.
    `kv`: what the KV cache is kept in; None: what the scheme stores."""

    model: str
    out: Path
    target: str = "cpu"
    scheme: Scheme = Scheme.BF16
    max_batch: int = 16
    max_seq_len: int | None = None
    step_tokens: int = STEP_TOKENS
    passes: str = ""
    dump_ir: Path | None = None
    limits: Path | None = None
    hollow: bool = False
    as_stored: bool = False
    certify: int | None = None
    max_kl: float | None = None
    quality: Budget | None = None
    calibrate: Path | None = None
    gptq: bool = False
    at: tuple[At, ...] = ()
    kv: DType | None = None

    @property
    def targets(self) -> dict[str, Backend]:
        """By name, in the order asked for. Raises BuildError, TargetError."""
        names = [name.strip() for name in self.target.split(",")]
        if len(set(names)) != len(names):
            raise BuildError(f"--target {self.target}: a target is named twice")
        return {name: find_target(name) for name in names}

    def pipeline(self, num_valid_tokens: int, layout: WeightLayout, chosen: tuple[At, ...] = ()) -> Pipeline:
        """The passes, as changed by the user. `chosen`: formats of modules that the user says nothing of. Raises
        BuildError."""
        others = (*self.at, *chosen)
        try:
            usual = default_pipeline(self.scheme, num_valid_tokens, layout, self.as_stored, self.kv)
            with_others = usual.each(lambda p: replace(p, others=others) if isinstance(p, ChooseFormats) else p)
            return with_options(with_others, self.passes)
        except (ValueError, ParseError) as error:
            raise BuildError(str(error)) from error


def check_options(options: BuildOptions) -> None:
    """Refuses what needs no model to be refused. Raises BuildError, TargetError, SourceError, ToolchainError, IRError,
    OutputOccupied, OutputUnwritable."""
    if not options.hollow:
        what_is(options.model)
    if options.max_kl is not None and options.certify == 0:
        raise BuildError(f"--max-kl {options.max_kl:g} with --certify 0: what is not measured is not held")
    calibrated = options.quality is not None or options.gptq
    if calibrated and (options.as_stored or options.hollow):
        raise BuildError("--quality and --gptq need --dtype, the format that may do, and a model's weights")
    if options.calibrate is not None and not calibrated:
        raise BuildError(f"--calibrate {options.calibrate} goes with --quality or --gptq")
    targets = options.targets
    for name, target in targets.items():
        if options.kv is not None and options.kv not in target.kv_dtypes:
            kept = ", ".join(sorted(KV_NAMES[dtype] for dtype in target.kv_dtypes))
            raise BuildError(f"target {name}: no kernels for a KV cache in {KV_NAMES[options.kv]}: use {kept}")
    for target in targets.values():
        target.builder(options.scheme)
    options.pipeline(1, WeightLayout.PANELS)
    if options.limits is not None:
        check_limits(read_limits(options.limits), list(targets.values()))
    check_output(options.out.absolute(), is_hollow if options.hollow else is_engine)
    if options.dump_ir is not None:
        check_writable(options.dump_ir.absolute() / "graph.llmc", "--dump-ir")
