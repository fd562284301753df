"""How close an engine's logits are to its source's own, in float32, position by position."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.compiler.verify.errors import VerificationError
from llmc.ir.formats import KV_NAMES, Scheme
from llmc.ir.types import DType


@dataclass(frozen=True)
class Closeness:
    """What an engine's logits may differ by: at the worst position, and in the mean over all."""

    relative_error: float
    mean_kl: float


# Both grow with the rounding step of a linear's weights, or of keys and values, KL with its square: 2^-24, 2^-11,
# 2^-8, 2^-7, 2^-4, 2^-3 of the largest in a group. How far from these bounds a model is, the table shows: 2^-4 and
# 2^-12 for SmolLM2-135M in bf16, 2^-1 and 2^-6 in int8.
BOUNDS = {
    DType.F32: Closeness(2.0**-10, 2.0**-20),
    DType.F16: Closeness(2.0**-4, 2.0**-11),
    DType.BF16: Closeness(2.0**-2, 2.0**-5),
    DType.I8: Closeness(1.0, 2.0**-3),
    DType.F8_E4M3: Closeness(2.0, 2.0**-1),
}
_FOUR_BITS = Closeness(4.0, 2.0)

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
class Worst:
    """Where the distributions differ most: a sequence, and a position in it."""

    text: int
    position: int

    def __str__(self) -> str:
        return f"position {self.position} of text {self.text}"


@dataclass(frozen=True)
class Verdict:
    """All sequences together. KL in nats, of the engine's distribution from the reference's; perplexities of the
    sequences themselves, the engine's and the reference's: None where no position has a successor."""

    texts: tuple[TextResult, ...]
    num_positions: int
    relative_error: float
    mean_kl: float
    p99_kl: float
    max_kl: float
    worst: Worst
    top1_agreement: float
    top1_agreement_gap_001: float
    top1_agreement_gap_1: float
    perplexity: float | None
    reference_perplexity: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def too_far(verdict: Verdict, schemes: Collection[Scheme], kept: Collection[DType]) -> str | None:
    """Why the logits are not those of the model in linears of these formats, with keys and values kept in these, or
    None."""
    rounded = [*(scheme.weight.element for scheme in schemes), *kept]
    bounds = [BOUNDS.get(element, _FOUR_BITS) for element in rounded]
    error, kl = max(b.relative_error for b in bounds), max(b.mean_kl for b in bounds)
    for name, found, most in (
        ("relative logit error", verdict.relative_error, error),
        ("mean KL", verdict.mean_kl, kl),
    ):
        if not found <= most:  # NaN is not close
            formats = ", ".join([*map(str, schemes), *(f"keys and values in {KV_NAMES[dtype]}" for dtype in kept)])
            return f"{name} is {found:.1e}, expected at most {most:.1e} of {formats}"
    return None


def compare(
    sequences: Iterable[list[int]],
    engine: Callable[[list[int]], Logits],
    reference: Callable[[list[int]], Logits],
    progress: Callable[[int], None] = lambda num_tokens_done: None,
) -> Verdict:
    """Run both on every sequence."""
    tables: list[Positions] = []
    done = 0
    for ids in sequences:
        tables.append(_positions(ids, engine(ids), reference(ids)))
        done += len(ids)
        progress(done)
    every = np.concatenate(tables)
    kl = every["kl"]
    starts = np.cumsum([0, *map(len, tables)])
    worst = int(kl.argmax())
    text = int(np.searchsorted(starts, worst, "right")) - 1
    return Verdict(
        texts=tuple(map(_text_result, tables)),
        num_positions=len(every),
        relative_error=float(every["error"].max()),
        mean_kl=float(kl.mean()),
        p99_kl=float(np.quantile(kl, 0.99)),
        max_kl=float(kl.max()),
        worst=Worst(text, worst - int(starts[text])),
        top1_agreement=float(every["same"].mean()),
        top1_agreement_gap_001=_agreement(every, 1e-3),
        top1_agreement_gap_1=_agreement(every, 0.1),
        perplexity=_perplexity([table["ours"] for table in tables]),
        reference_perplexity=_perplexity([table["theirs"] for table in tables]),
    )


_ROWS = 32  # positions at a time: a row in float64 is 2 MB where the vocabulary is large, and there are several of each
_FIELDS = [("error", "f8"), ("kl", "f8"), ("same", "f8"), ("gap", "f8"), ("ours", "f8"), ("theirs", "f8")]
Positions = npt.NDArray[np.void]
"""Of each position: relative error, KL, same top-1 (0 or 1), the reference's top-2 gap, and what engine and reference
give the token that follows, as log-probabilities (of the last: of nothing)."""


def _positions(ids: list[int], ours: Logits, theirs: Logits) -> Positions:
    table = np.zeros(len(ids), _FIELDS)
    following = np.array([*ids[1:], 0])
    for start in range(0, len(ids), _ROWS):
        at = slice(start, start + _ROWS)
        a, b = ours[at].astype(np.float64), theirs[at].astype(np.float64)
        log_a, log_b = _log_softmax(a), _log_softmax(b)
        top = np.partition(b, -2, axis=1)[:, -2:]
        table["error"][at] = _relative(np.linalg.norm(a - b, axis=1), np.linalg.norm(b, axis=1))
        table["kl"][at] = (np.exp(log_b) * (log_b - log_a)).sum(1)
        table["same"][at] = a.argmax(1) == b.argmax(1)
        table["gap"][at] = top[:, 1] - top[:, 0]
        table["ours"][at] = np.take_along_axis(log_a, following[at, None], 1)[:, 0]
        table["theirs"][at] = np.take_along_axis(log_b, following[at, None], 1)[:, 0]
    return table


def _relative(error: npt.NDArray[np.float64], whole: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """No error of nothing is none; any is infinite."""
    of_nothing = np.where(error == 0, 0.0, np.inf)
    return np.divide(error, whole, out=of_nothing, where=whole != 0)


def _text_result(table: Positions) -> TextResult:
    kl, wrong = table["kl"], table[table["same"] == 0]
    gap = float(wrong["gap"].max()) if len(wrong) else 0.0
    return TextResult(len(table), float(table["error"].max()), float(kl.mean()), float(kl.max()), len(wrong), gap)


def _perplexity(log_probabilities: list[npt.NDArray[np.float64]]) -> float | None:
    known = np.concatenate([of_text[:-1] for of_text in log_probabilities])
    return float(np.exp(-known.mean())) if len(known) else None


def _log_softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = x - x.max(1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))


def _agreement(table: Positions, gap: float) -> float:
    clear = table[table["gap"] > gap]
    return float(clear["same"].mean()) if len(clear) else 1.0


def read_text(path: Path) -> str:
    """Raises VerificationError, OSError."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise VerificationError(f"{path}: not UTF-8: {error}") from error


def read_texts(path: Path) -> list[str]:
    """One text per line, empty lines left out. Raises VerificationError, OSError."""
    return [line for line in read_text(path).splitlines() if line.strip()]
