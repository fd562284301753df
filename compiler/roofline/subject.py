"""What `llmc inspect --roofline` predicts: a model lowered for a kind of target, or an engine as it was built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmc.compiler.roofline.lowering import Lowering
from llmc.compiler.targets.backend import Backend


class PredictionError(Exception):
    """A prediction that cannot be made as asked; the message is one line for people."""


@dataclass(frozen=True)
class Subject:
    """`lowered`: what the kernels of a target would run; an engine has only what it was built with. `targets`: those to
    show where none is asked for, an engine's own. `ignored`: settings of a model's config.json that change nothing."""

    name: str
    dtype: str
    max_seq_len: int
    lowered: Callable[[Backend], Lowering]
    targets: tuple[str, ...] = ("h100", "h200", "a100")
    ignored: Callable[[], Sequence[str]] = tuple
