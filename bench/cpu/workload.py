"""What is raced: prompts of random tokens, greedy, end-of-sequence ignored; rates are tokens per second."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass


class Phase(enum.Enum):
    PREFILL = "prefill"  # prompt tokens, from submission to the first sampled token
    DECODE = "decode"  # generated tokens of all sequences, from the first token on


@dataclass(frozen=True)
class Workload:
    """`batch` sequences with prompts of `prompt_len` tokens; `new_tokens` each where the phase is decode."""

    phase: Phase
    batch: int
    prompt_len: int
    new_tokens: int

    @property
    def name(self) -> str:
        return f"prefill {self.prompt_len}" if self.phase is Phase.PREFILL else f"decode b{self.batch}"


PREFILL = Workload(Phase.PREFILL, 1, 512, 0)
DECODE = Workload(Phase.DECODE, 1, 128, 128)
BATCHED = (Workload(Phase.DECODE, 8, 128, 128), Workload(Phase.DECODE, 16, 128, 128))


def prompts(vocab_size: int, workload: Workload, seed: int) -> list[list[int]]:
    """Token ids [batch][prompt_len]: all prompts differ, so that no prefix can be shared."""
    draw = random.Random(seed)
    return [[draw.randrange(vocab_size) for _ in range(workload.prompt_len)] for _ in range(workload.batch)]
