"""`llmc verify`: a table per text and the totals."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers import PreTrainedModel

from llmc.compiler.commands.refusal import refuse
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.resolve import open_source
from llmc.compiler.verification import (
    Verdict,
    VerificationError,
    compare,
    read_texts,
    reference_logits,
    reference_model,
)
from llmc.compiler.verify_texts import sequences
from llmc.runtime.errors import RuntimeFailure
from llmc.runtime.loop.engine import Engine


def verify_engine(engine: Path, model: str, texts: Path | None, as_json: bool, device: str | None = None) -> int:
    """Compare and print; returns the exit code."""
    console = Console(stderr=True)
    try:
        bars = Progress(console=console, transient=True, disable=not console.is_terminal)
        with Engine.load(engine, max_batch=1, max_rows=64, device=device) as loaded, bars:
            given = _sequences(loaded, texts)
            task = bars.add_task("loading the reference", total=len(given))
            reference = reference_model(open_source(model))
            _check_same_vocabulary(loaded, reference, engine, model)
            bars.update(task, description="comparing")
            verdict = compare(
                given,
                lambda ids: loaded.logits(ids),
                lambda ids: reference_logits(reference, ids),
                lambda: bars.advance(task),
            )
    except (RuntimeFailure, SourceError, VerificationError) as error:
        return refuse(error)
    if as_json:
        print(json.dumps(verdict.to_json(), indent=1))
    else:
        _show(verdict)
    return 0


def _sequences(engine: Engine, texts: Path | None) -> list[list[int]]:
    """What to compare: the texts of a file, or the built-in ones as far as the engine's envelope holds them."""
    if texts is None:
        return sequences(engine.encode, engine.device.limits.max_seq_len)
    given = [engine.encode(text) for text in read_texts(texts)]
    if not given:
        raise VerificationError(f"{texts}: holds no text")
    return given


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
    console.print(f"KL, mean / largest              {verdict.mean_kl:.3e} / {verdict.max_kl:.3e} nats")
    console.print(
        f"same top-1                      {verdict.top1_agreement:.4%} of all, "
        f"{verdict.top1_agreement_gap_001:.4%} where the gap exceeds 0.001, "
        f"{verdict.top1_agreement_gap_1:.4%} where it exceeds 0.1"
    )
