"""What a build does to know how far its engine is from its source: measures it, or says why it did not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from llmc.codegen.cpu.toolchain import ToolchainError
from llmc.compiler.build_options import BuildError, BuildOptions
from llmc.compiler.progress import Progress
from llmc.compiler.sources.model_source import ModelSource
from llmc.compiler.verify.certificate import FORMAT, Certificate, write_certificate
from llmc.compiler.verify.corpus import PIECE_TOKENS
from llmc.compiler.verify.errors import VerificationError
from llmc.compiler.verify.measure import USUAL_TOKENS, measure
from llmc.compiler.verify.reference import source_model
from llmc.ir.graph import IRError
from llmc.runtime.artifact.artifact import TOKENIZER, EngineFiles
from llmc.runtime.artifact.atomic_folder import hidden_sibling
from llmc.runtime.artifact.features import Machine
from llmc.runtime.artifact.manifest import Manifest
from llmc.runtime.artifact.target import choose_target
from llmc.runtime.errors import EngineError, NotEnoughMemory, RuntimeFailure
from llmc.runtime.loop.engine import Engine

TWIN = "a twin for this CPU"


class NotMeasured(Exception):
    """The message says why, for people."""


@dataclass(frozen=True)
class Certifying:
    """What is measured against what. `build_cpu` builds the same for this machine's CPU at a path."""

    source: ModelSource
    options: BuildOptions
    build_cpu: Callable[[Path], Manifest]
    progress: Progress

    def finish(self, folder: Path, manifest: Manifest) -> None:
        """Lays the certificate of a finished engine beside its files. BuildError where --max-kl is missed."""
        if self.options.certify == 0:
            return
        try:
            certificate = self._certificate(folder, manifest)
        except NotMeasured as reason:
            if self.options.max_kl is not None:
                raise BuildError(f"--max-kl {self.options.max_kl:g} cannot be told: {reason}") from reason
            certificate = _of_nothing(folder, manifest, f"nothing was measured: {reason}")
        self._hold(certificate)
        write_certificate(folder, certificate)

    def _certificate(self, folder: Path, manifest: Manifest) -> Certificate:
        if TOKENIZER not in manifest.files:
            raise NotMeasured("the source has no tokenizer, so no text can be given to it")
        with self._runnable(folder, manifest) as (engine, found):
            self.progress.stage("loading the source to measure against")
            try:
                model = source_model(self.source)
                self.progress.stage("measuring against the source")
                told = partial(self.progress.amount, unit="tokens")
                certificate = measure(engine, model, self.options.certify or USUAL_TOKENS, told)
            except (VerificationError, RuntimeFailure) as error:
                raise NotMeasured(str(error)) from error
        files = EngineFiles(folder, manifest).files_digest
        others = [t.name for t in manifest.targets if t.name != found]
        return replace(certificate, engine=files, measured_on=found, remarks=tuple(_not_run(others, found)))

    @contextmanager
    def _runnable(self, folder: Path, manifest: Manifest) -> Iterator[tuple[Engine, str]]:
        """The engine, or its twin, loaded, and what it is. A twin costs a second build: only who asks has one."""
        try:
            target = choose_target(folder, manifest, Machine.this()).target.name
        except EngineError as error:
            if self.options.certify is None and self.options.max_kl is None:
                raise NotMeasured(f"{_reason(folder, error)}; --certify {USUAL_TOKENS} measures {TWIN}") from error
            with hidden_sibling(self.options.out.absolute()) as scratch, self._twin(scratch / "twin") as engine:
                yield engine, TWIN
            return
        with _load(folder, manifest) as engine:
            yield engine, target

    def _twin(self, path: Path) -> Engine:
        try:
            return _load(path, self.build_cpu(path))
        except (IRError, ToolchainError) as error:
            raise NotMeasured(f"{TWIN} cannot be built: {error}") from error

    def _hold(self, certificate: Certificate) -> None:
        most, figures = self.options.max_kl, certificate.figures
        if most is None or figures is None or figures.kl_mean <= most:
            return
        worst = max(certificate.layers, key=lambda layer: layer.weight_error, default=None)
        furthest = f"; {worst.module} is furthest, by {worst.weight_error:.1%} in {worst.scheme}" if worst else ""
        raise BuildError(
            f"--max-kl {most:g} is missed: mean KL from the source is {figures.kl_mean:.3g} over {figures.positions} "
            f"positions{furthest}: choose another --dtype, or allow more; no engine was written"
        )


def _load(folder: Path, manifest: Manifest) -> Engine:
    longest = min(PIECE_TOKENS, manifest.limits.max_seq_len)
    try:
        return Engine.load(folder, max_batch=1, max_seq_len=longest, max_rows=PIECE_TOKENS, prefix_cache=False)
    except NotEnoughMemory as error:
        raise NotMeasured(str(error)) from error


def _of_nothing(folder: Path, manifest: Manifest, remark: str) -> Certificate:
    engine = EngineFiles(folder, manifest).files_digest
    return Certificate(FORMAT, engine, manifest.model.name, "", 0, "", None, (), (remark,))


def _reason(folder: Path, error: EngineError) -> str:
    return str(error).removeprefix(f"{folder}: ")


def _not_run(others: list[str], measured: str) -> Iterator[str]:
    if others:
        names = ", ".join(others)
        yield f"{names} was not run: {measured} has the same weights and number formats, and other orders of sums"
