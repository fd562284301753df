"""Texts that come with llmc, written for it and in the public domain (CC0): what a model is measured on, and what its
number formats are chosen by, which is another text, so that neither flatters the other.

Prose, dialogue, letters, code, tables, sums, and passages in German, French and Spanish; no model has learned them by
heart, as it has the classics.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

from llmc.compiler.verify.errors import VerificationError

PIECE_TOKENS = 128  # of a sequence


@cache
def held_out() -> str:
    """Some 2,000 tokens."""
    return _read("held_out.txt")


@cache
def calibration() -> str:
    """Some 2,500 tokens."""
    return _read("calibration.txt")


def _read(name: str) -> str:
    return resources.files("llmc.compiler.verify").joinpath(name).read_text(encoding="utf-8")


def spread(ids: Sequence[int], prefix: Sequence[int], tokens: int, longest: int) -> list[list[int]]:
    """Sequences of PIECE_TOKENS tokens (of `longest`, if that is less) with `tokens` tokens together, each `prefix`
    (the BOS of models that want one) and then a run of `ids`; the runs lie evenly spread over them, so that a few
    hundred tokens see every kind of text. As many as there are where more are asked for. Raises VerificationError where
    no token would follow another."""
    size = min(PIECE_TOKENS, longest) - len(prefix)
    if size < 1 or size + len(prefix) < 2:
        raise VerificationError(f"no text fits into sequences of {longest} tokens")
    count = max(1, min(tokens // (size + len(prefix)), len(ids) // size))
    stride = len(ids) // count
    return [[*prefix, *ids[i * stride : i * stride + size]] for i in range(count)]
