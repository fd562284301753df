"""The calibration run of a build: its text, its source in torch, the units of its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from llmc.codegen.cpu.toolchain import ToolchainError
from llmc.compiler.build_options import BuildError, BuildOptions
from llmc.compiler.capture.capture import Captured
from llmc.compiler.progress import Progress
from llmc.compiler.quality import formats, rounded
from llmc.compiler.quality.budget import Budget
from llmc.compiler.quality.choose import OverBudget, finer
from llmc.compiler.quality.formats import Choice
from llmc.compiler.quality.sensitivity import Calibration
from llmc.compiler.quality.units import units_of
from llmc.compiler.sources.model_source import ModelSource
from llmc.compiler.sources.special_tokens import decide_tokens
from llmc.compiler.targets.backend import Backend
from llmc.compiler.verify.corpus import PIECE_TOKENS, calibration, spread
from llmc.compiler.verify.errors import VerificationError
from llmc.compiler.verify.logits import read_text
from llmc.compiler.verify.reference import SourceModel, source_model
from llmc.compiler.verify.source_text import source_text
from llmc.ir.formats import Scheme
from llmc.ir.graph import IRError
from llmc.ir.ops.reduce import Linear
from llmc.passes.choose_formats import ChooseFormats, scheme_of
from llmc.passes.pipeline import Pipeline, run_until_formats
from llmc.passes.rewrite import RuleLog
from llmc.runtime.artifact.manifest import Limits


@dataclass(frozen=True)
class Calibrating:
    """A source in torch, and the ids of a calibration text."""

    options: BuildOptions
    source: ModelSource
    model: SourceModel
    ids: Sequence[int]
    prefix: Sequence[int]
    longest: int
    progress: Progress

    @classmethod
    def load(cls, options: BuildOptions, source: ModelSource, limits: Limits, progress: Progress) -> Calibrating:
        """BuildError where there is no text, or no room."""
        progress.stage("loading the source to calibrate with")
        ours = source_text(source)
        if ours is None:
            raise BuildError(f"{source.path}: --quality and --gptq need a tokenizer to read a text with: it has none")
        given = options.calibrate
        tokens = decide_tokens(source).tokens
        prefix = [tokens.bos] if tokens.add_bos and tokens.bos is not None else []
        longest = min(PIECE_TOKENS, limits.max_seq_len)
        try:
            ids = ours.encode(calibration() if given is None else read_text(given))[len(prefix) :]
            if len(ids) + len(prefix) < longest:
                raise BuildError(f"--calibrate {given}: {len(ids)} tokens, at least {longest} expected")
            spread(ids, prefix, longest, longest)  # or it is refused before the source is loaded
            return cls(options, source, source_model(source), ids, prefix, longest, progress)
        except VerificationError as error:
            raise BuildError(f"--quality, --gptq: {error}") from error

    def _sequences(self, tokens: int) -> list[list[int]]:
        return spread(self.ids, self.prefix, tokens, self.longest)

    def choose(self, budget: Budget, captured: Captured, pipeline: Pipeline) -> Choice:
        """The formats of the model's linears under a budget. BuildError where none keep to it."""
        options = self.options
        schemes = [options.scheme, *_with_kernels(finer(options.scheme), options.targets)]
        self.progress.stage("measuring what each linear's bits are worth")
        text = "built in" if options.calibrate is None else options.calibrate.name
        told = partial(self.progress.amount, unit="groups of linears")
        units = units_of(run_until_formats(captured.graph, pipeline))
        try:
            calibrating = Calibration(self.model.module, self._sequences(formats.TOKENS), self.model.names)
            return formats.choose_formats(units, schemes, calibrating, budget, text, told)
        except (OverBudget, VerificationError) as error:
            raise BuildError(f"--quality {error}") from error

    def round(self, captured: Captured, pipeline: Pipeline) -> Captured:
        """The model with weights that were rounded for the inputs that they have."""
        self.progress.stage("rounding weights for their inputs")
        graph = run_until_formats(captured.graph, pipeline)
        (choosing,) = (step for step in pipeline.passes if isinstance(step, ChooseFormats))
        chosen = choosing.run(graph, RuleLog())
        schemes = {node.loc: scheme_of(node) for node in chosen.nodes if isinstance(node.op, Linear)}
        told = partial(self.progress.amount, unit="weights")
        sequences = self._sequences(rounded.TOKENS)
        return rounded.round_weights(
            captured, self.model.module, self.model.names, sequences, units_of(graph), schemes, told
        )


def _with_kernels(schemes: tuple[Scheme, ...], targets: Mapping[str, Backend]) -> list[Scheme]:
    return [scheme for scheme in schemes if all(_multiplies(target, scheme) for target in targets.values())]


def _multiplies(target: Backend, scheme: Scheme) -> bool:
    try:
        target.builder(scheme)
    except (IRError, ToolchainError):
        return False
    return True
