"""`llmc verify`: what engine and source make of text, a table per text of their logits, totals, and a verdict."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel

from llmc.codegen.engine_weights import schemes_of
from llmc.compiler.commands.certificate_console import certificate_lines
from llmc.compiler.commands.progress_console import shown
from llmc.compiler.commands.refusal import refuse
from llmc.compiler.progress import Progress
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.model_source import ModelSource
from llmc.compiler.sources.resolve import open_source
from llmc.compiler.verify.certificate import Certificate, differences, read_certificate, reproducible_digits
from llmc.compiler.verify.errors import VerificationError
from llmc.compiler.verify.logits import Verdict, compare, read_texts, too_far
from llmc.compiler.verify.measure import USUAL_TOKENS, measure
from llmc.compiler.verify.reference import reference_logits, reference_model, source_model
from llmc.compiler.verify.source_text import source_text
from llmc.compiler.verify.text_path import TextPath, compare_text
from llmc.compiler.verify.texts import sequences
from llmc.compiler.verify.texts import texts as builtin_texts
from llmc.ir.formats import Scheme
from llmc.ir.types import DType
from llmc.runtime.artifact.manifest import TargetEntry
from llmc.runtime.artifact.strict_json import to_plain
from llmc.runtime.errors import RuntimeFailure
from llmc.runtime.loop.engine import Engine

EXIT_DIFFERS = 1
_MOST_SHOWN = 20


@dataclass(frozen=True)
class _Found:
    """`again`: the certificate, measured anew; None where there is no tokenizer to read its text."""

    text: TextPath
    logits: Verdict
    schemes: tuple[Scheme, ...]
    kept: tuple[DType, ...]
    stated: Certificate | None
    again: Certificate | None

    @property
    def other_figures(self) -> list[str]:
        """Those of the certificate that a second measurement does not give."""
        if self.stated is None or self.stated.figures is None or self.again is None or self.again.figures is None:
            return []
        digits = reproducible_digits(self.stated, self.again)
        return [] if digits is None else list(differences(self.stated.figures, self.again.figures, digits))

    @property
    def reasons(self) -> list[str]:
        """Why the engine is not what it says it is."""
        text = [f"{len(self.text.disagreements)} disagreements about text"] if self.text.disagreements else []
        far = too_far(self.logits, self.schemes, self.kept)
        return [*text, *([far] if far is not None else []), *self.other_figures]

    def to_json(self) -> dict[str, Any]:
        measured = {"stated": self.stated, "found": self.again, "differences": self.other_figures}
        return {
            **self.logits.to_json(),
            "text_path": self.text.to_json(),
            "certificate": {name: to_plain(value) for name, value in measured.items()},
            "verdict": "FAIL" if self.reasons else "PASS",
        }


def verify_engine(engine: Path, model: str, texts: Path | None, as_json: bool, device: str | None = None) -> int:
    """Compare and print; returns the exit code: 0 if text and logits are the model's, 1 if not, 2 for a refusal."""
    try:
        with shown(Console(stderr=True, markup=False, highlight=False)) as progress:
            found = _compare(engine, model, texts, device, progress)
    except (RuntimeFailure, SourceError, VerificationError) as error:
        return refuse(error)
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        _show(found.logits)
        _show_text(found.text)
        _show_certificate(found)
        _say("; ".join(found.reasons))
    return EXIT_DIFFERS if found.reasons else 0


def _compare(engine: Path, model: str, texts: Path | None, device: str | None, progress: Progress) -> _Found:
    """The text path first: it takes a second, and the logits may take many."""
    given = None if texts is None else _given(texts)
    progress.stage("loading the engine")
    with Engine.load(engine, max_batch=1, max_rows=64, device=device) as loaded:
        stated = read_certificate(engine, loaded.manifest)
        progress.stage("reading the model")
        source = open_source(model)
        theirs = source_text(source)
        every = [*(given or []), *builtin_texts()]
        progress.stage("comparing texts")
        path = compare_text(loaded, source, theirs, every, lambda done, of: progress.amount(done, of, "comparisons"))
        verdict = _logits(loaded, source, _sequences(loaded, given), progress)
        target = loaded.artifact.target
        schemes, kept = schemes_of(engine, target), _kept(target)
        again = None
        if loaded.tokenizer is not None:
            progress.stage("measuring the certificate again")
            tokens = stated.tokens if stated is not None and stated.tokens else USUAL_TOKENS
            told = partial(progress.amount, unit="tokens")
            again = measure(loaded, source_model(source), tokens, told)
        return _Found(path, verdict, schemes, kept, stated, again)


def _logits(engine: Engine, source: ModelSource, sequences: list[list[int]], progress: Progress) -> Verdict:
    progress.stage("loading the reference")
    reference = reference_model(source)
    _check_same_vocabulary(engine, reference, source)
    progress.stage("comparing logits")
    total = sum(map(len, sequences))
    return compare(
        sequences,
        engine.logits,
        lambda ids: reference_logits(reference, ids),
        lambda done: progress.amount(done, total, "tokens"),
    )


def _kept(target: TargetEntry) -> tuple[DType, ...]:
    """What keys and values are kept in."""
    return tuple(dict.fromkeys(DType(slot.dtype) for group in target.kv.groups for slot in group.slots))


def _given(texts: Path) -> list[str]:
    given = read_texts(texts)
    if not given:
        raise VerificationError(f"{texts}: holds no text")
    return given


def _sequences(engine: Engine, given: list[str] | None) -> list[list[int]]:
    """What to compare: the given texts, or the built-in ones as far as the engine's envelope holds them."""
    if given is None:
        return sequences(engine.encode, engine.device.limits.max_seq_len)
    return [engine.encode(text) for text in given]


def _check_same_vocabulary(engine: Engine, reference: PreTrainedModel, source: ModelSource) -> None:
    ours, theirs = engine.manifest.model.vocab_size, reference.config.get_text_config().vocab_size
    if ours != theirs:
        raise VerificationError(
            f"{engine.artifact.folder} has logits for {ours} tokens, {source.path} for {theirs}: the engine was built "
            "from another model"
        )


def _show(verdict: Verdict) -> None:
    table = Table(title=f"{verdict.num_positions} positions of {len(verdict.texts)} texts against transformers float32")
    for column in ("tokens", "relative error", "mean KL", "max KL", "other top-1", "its largest gap"):
        table.add_column(column, justify="right")
    for text in verdict.texts:
        table.add_row(
            str(text.num_tokens),
            f"{text.relative_error:.2e}",
            f"{text.mean_kl:.2e}",
            f"{text.max_kl:.2e}",
            str(text.wrong_top1),
            f"{text.wrong_top1_gap:.4f}",
        )
    console = Console()
    console.print(table)
    console.print(f"relative logit error, largest   {verdict.relative_error:.3e}")
    kl = f"{verdict.mean_kl:.3e} / {verdict.p99_kl:.3e} / {verdict.max_kl:.3e} nats"
    console.print(f"KL, mean / p99 / largest        {kl}, the largest at {verdict.worst}")
    console.print(
        f"same top-1                      {verdict.top1_agreement:.4%} of all, "
        f"{verdict.top1_agreement_gap_001:.4%} where the gap exceeds 0.001, "
        f"{verdict.top1_agreement_gap_1:.4%} where it exceeds 0.1"
    )


def _show_text(path: TextPath) -> None:
    console = Console(markup=False, highlight=False)
    for found in path.disagreements[:_MOST_SHOWN]:
        console.print(str(found), soft_wrap=True)
    if (more := len(path.disagreements) - _MOST_SHOWN) > 0:
        console.print(f"and {more} more disagreements")
    console.print(
        f"text path                       {path.num_compared} comparisons, {len(path.disagreements)} disagree"
    )


def _show_certificate(found: _Found) -> None:
    console = Console(markup=False, highlight=False)
    for line in certificate_lines(found.stated):
        console.print(f"certificate                     {line}", soft_wrap=True)
    if found.again is not None:
        for line in certificate_lines(found.again):
            console.print(f"measured again                  {line}", soft_wrap=True)


def _say(reasons: str) -> None:
    Console(markup=False, highlight=False).print(f"FAIL: {reasons}" if reasons else "PASS", soft_wrap=True)
