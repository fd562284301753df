"""Prompts of a plan: random, all different, the same from the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from llmc.serve.load.plan import Planned
from llmc.serve.load.refusal import BenchRefused

# Short common words, one token each (with the space before it) in the vocabularies that people use.
_TEXT = """
    the of and to in is that it was for on are as with his they at be this from have or by one had not but what
    all were when we there can an your which their said if do will each about how up out them then she many some
    so these would other into has more her two like him see time could no make than first been its who now
    people my made over did down only way find use may water long little very after words called just where most
    know get through back much before go good new write our used me man too any day same right look think also
    around another came come work three word must because does part even place well such here take why things
    help put years different away again off went old number great tell men say small every found still between
    name should home big give air line set own under read last never us left end along while might next sound
    below saw something thought both few those always looked show large often together asked house world going
    want
"""
WORDS = tuple(_TEXT.split())


@dataclass(frozen=True)
class IdPrompts:
    """Token ids out of `pool`."""

    pool: Sequence[int]

    def make(self, planned: Planned, seed: str) -> str | list[int]:
        if planned.given is not None:
            return planned.given if isinstance(planned.given, str) else list(planned.given)
        prefix, own = _generators(planned, seed)
        return prefix.choices(self.pool, k=planned.prefix_len) + own.choices(self.pool, k=planned.prompt_len)


@dataclass(frozen=True)
class TextPrompts:
    """As many words as tokens are asked for: about that many tokens. The server's own count is what is reported."""

    def make(self, planned: Planned, seed: str) -> str | list[int]:
        if isinstance(planned.given, str):
            return planned.given
        if planned.given is not None:
            raise BenchRefused("the trace has prompts of token ids, and this server takes text only")
        prefix, own = _generators(planned, seed)
        words = prefix.choices(WORDS, k=planned.prefix_len) + own.choices(WORDS, k=planned.prompt_len)
        return " ".join(words)


Prompts = IdPrompts | TextPrompts


def _generators(planned: Planned, seed: str) -> tuple[Random, Random]:
    """Of the shared prefix, and of what is the request's own."""
    return Random(f"{seed} prefix {planned.prefix}"), Random(f"{seed} request {planned.index}")
