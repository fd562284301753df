"""`llmc verify`: what engine and source make of text, a table per text of their logits, totals, and a verdict."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel

from llmc.compiler.commands.progress_console import shown
from llmc.compiler.commands.refusal import refuse
from llmc.compiler.progress import Progress
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.resolve import open_source
from llmc.compiler.verify.errors import VerificationError
from llmc.compiler.verify.logits import Verdict, compare, read_texts, too_far
from llmc.compiler.verify.reference import reference_logits, reference_model
from llmc.compiler.verify.source_text import source_text
from llmc.compiler.verify.text_path import TextPath, compare_text
from llmc.compiler.verify.texts import sequences
from llmc.compiler.verify.texts import texts as builtin_texts
from llmc.runtime.errors import RuntimeFailure
from llmc.runtime.loop.engine import Engine

EXIT_DIFFERS = 1
_MOST_SHOWN = 20


def verify_engine(engine: Path, model: str, texts: Path | None, as_json: bool, device: str | None = None) -> int:
    """Compare and print; returns the exit code: 0 if text and logits are the model's, 1 if not, 2 for a refusal."""
    try:
        with shown(Console(stderr=True, markup=False, highlight=False)) as progress:
            path, verdict, dtype = _compare(engine, model, texts, device, progress)
    except (RuntimeFailure, SourceError, VerificationError) as error:
        return refuse(error)
    reasons = [f"{len(path.disagreements)} disagreements about text"] if path.disagreements else []
    if (far := too_far(verdict, dtype)) is not None:
        reasons.append(far)
    if as_json:
        whole = {**verdict.to_json(), "text_path": path.to_json(), "verdict": "FAIL" if reasons else "PASS"}
        print(json.dumps(whole, indent=1))
    else:
        _show(verdict)
        _show_text(path)
        _say("; ".join(reasons))
    return EXIT_DIFFERS if reasons else 0


def _compare(
    engine: Path, model: str, texts: Path | None, device: str | None, progress: Progress
) -> tuple[TextPath, Verdict, str]:
    """The text path first: it takes a second, and the logits may take many."""
    given = None if texts is None else _given(texts)
    progress.stage("loading the engine")
    with Engine.load(engine, max_batch=1, max_rows=64, device=device) as loaded:
        progress.stage("reading the model")
        source = open_source(model)
        theirs = source_text(source)
        every = [*(given or []), *builtin_texts()]
        progress.stage("comparing texts")
        path = compare_text(loaded, source, theirs, every, lambda done, of: progress.amount(done, of, "comparisons"))
        encoded = _sequences(loaded, given)
        progress.stage("loading the reference")
        reference = reference_model(source)
        _check_same_vocabulary(loaded, reference, engine, model)
        progress.stage("comparing logits")
        total = sum(map(len, encoded))
        verdict = compare(
            encoded,
            lambda ids: loaded.logits(ids),
            lambda ids: reference_logits(reference, ids),
            lambda done: progress.amount(done, total, "tokens"),
        )
        return path, verdict, loaded.manifest.model.dtype


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


def _check_same_vocabulary(engine: Engine, reference: PreTrainedModel, folder: Path, model: str) -> None:
    ours, theirs = engine.manifest.model.vocab_size, reference.config.get_text_config().vocab_size
    if ours != theirs:
        raise VerificationError(
            f"{folder} has logits for {ours} tokens, {model} for {theirs}: the engine was built from another model"
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


def _say(reasons: str) -> None:
    Console(markup=False, highlight=False).print(f"FAIL: {reasons}" if reasons else "PASS", soft_wrap=True)
