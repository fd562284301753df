"""How close an engine's logits are to transformers' own, in float32, position by position."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel, modeling_gguf_pytorch_utils

from llmc.compiler.sources.model_config import one_line
from llmc.compiler.sources.model_source import ModelSource, SourceFormat
from llmc.ir.formats import Scheme


class VerificationError(Exception):
    """There is nothing to compare, or no comparison; the message is one line for people."""


@dataclass(frozen=True)
class Closeness:
    """What an engine's logits may differ by: at the worst position, and in the mean over all."""

    relative_error: float
    mean_kl: float


# Both grow with the format's rounding step, KL with its square: 2^-24, 2^-11, 2^-8, 2^-7 of the largest in a group. How
# far from these bounds a model is, the table shows: 2^-4 and 2^-12 for SmolLM2-135M in bf16, 2^-1 and 2^-6 in int8.
BOUNDS = {
    Scheme.F32: Closeness(2.0**-10, 2.0**-20),
    Scheme.F16: Closeness(2.0**-4, 2.0**-11),
    Scheme.BF16: Closeness(2.0**-2, 2.0**-5),
    Scheme.INT8: Closeness(1.0, 2.0**-3),
}

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TextResult:
    """One sequence. `relative_error`: the largest ||a - b|| / ||b|| of a position; gaps are the reference's top-2."""

    num_tokens: int
    relative_error: float
    mean_kl: float
    max_kl: float
    wrong_top1: int
    wrong_top1_gap: float


@dataclass(frozen=True)
class Verdict:
    """All sequences together. KL in nats, of the engine's distribution from the reference's."""

    texts: tuple[TextResult, ...]
    num_positions: int
    relative_error: float
    mean_kl: float
    max_kl: float
    top1_agreement: float
    top1_agreement_gap_001: float
    top1_agreement_gap_1: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def too_far(verdict: Verdict, dtype: str) -> str | None:
    """Why the logits are not those of the model in a format's precision, or None."""
    bounds = BOUNDS[Scheme.named(dtype)]
    for name, found, most in (
        ("relative logit error", verdict.relative_error, bounds.relative_error),
        ("mean KL", verdict.mean_kl, bounds.mean_kl),
    ):
        if not found <= most:  # NaN is not close
            return f"{name} is {found:.1e}, expected at most {most:.1e} of {dtype}"
    return None


def reference_model(source: ModelSource) -> PreTrainedModel:
    """transformers' own model in float32, loaded by transformers itself."""
    where: dict[str, Any] = {"pretrained_model_name_or_path": str(source.path)}
    if source.format is SourceFormat.GGUF:
        where = {"pretrained_model_name_or_path": str(source.path.parent), "gguf_file": source.path.name}
        where["config"] = copy.deepcopy(source.config)  # with the facts that transformers does not find in the file
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {"attn_implementation": "eager", "trust_remote_code": False, "local_files_only": True}
    try:
        # of its bars only this one ignores the line above
        with patch.object(modeling_gguf_pytorch_utils, "tqdm", lambda tensors, desc: tensors):
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(**where, **options, dtype=torch.float32)
    except Exception as error:  # transformers refuses checkpoints in whatever way it likes
        raise VerificationError(f"{source.path}: transformers cannot load it: {one_line(error)}") from error
    model.train(False)
    return model


def reference_logits(model: PreTrainedModel, ids: list[int]) -> Logits:
    """[T, vocab] float32."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), use_cache=False)
    logits: Logits = out.logits[0].float().numpy()
    return logits


def compare(
    sequences: Iterable[list[int]],
    engine: Callable[[list[int]], Logits],
    reference: Callable[[list[int]], Logits],
    progress: Callable[[int], None] = lambda num_tokens_done: None,
) -> Verdict:
    """Run both on every sequence."""
    texts: list[TextResult] = []
    rows: list[npt.NDArray[np.float64]] = []
    done = 0
    for ids in sequences:
        table = _positions(engine(ids), reference(ids))
        rows.append(table)
        wrong = table[table[:, 2] == 0]
        texts.append(
            TextResult(
                len(ids),
                float(table[:, 0].max()),
                float(table[:, 1].mean()),
                float(table[:, 1].max()),
                len(wrong),
                float(wrong[:, 3].max()) if len(wrong) else 0.0,
            )
        )
        done += len(ids)
        progress(done)
    every = np.concatenate(rows)
    return Verdict(
        tuple(texts),
        len(every),
        float(every[:, 0].max()),
        float(every[:, 1].mean()),
        float(every[:, 1].max()),
        float(every[:, 2].mean()),
        _agreement(every, 1e-3),
        _agreement(every, 0.1),
    )


def _positions(ours: Logits, theirs: Logits) -> npt.NDArray[np.float64]:
    """Per position: relative error, KL, same top-1 (0 or 1), the reference's top-2 gap."""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    error = np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)
    log_a, log_b = _log_softmax(a), _log_softmax(b)
    kl = (np.exp(log_b) * (log_b - log_a)).sum(1)
    same = a.argmax(1) == b.argmax(1)
    top = np.partition(b, -2, axis=1)[:, -2:]
    return np.stack([error, kl, same.astype(np.float64), top[:, 1] - top[:, 0]], 1)


def _log_softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = x - x.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def _agreement(table: npt.NDArray[np.float64], gap: float) -> float:
    clear = table[table[:, 3] > gap]
    return float(clear[:, 2].mean()) if len(clear) else 1.0


def read_texts(path: Path) -> list[str]:
    """One text per line, empty lines left out. Raises VerificationError, OSError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise VerificationError(f"{path}: not UTF-8: {error}") from error
    return [line for line in text.splitlines() if line.strip()]
