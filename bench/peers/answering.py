"""What a peer's process does: answer questions of the race, a line of JSON each. Runs in the peer's own environment.

Nothing but the standard library and numpy is imported here: the peers' environments have neither llmc nor this bench
installed, only its folder on the path.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Prompts = list[list[int]]


class Program(Protocol):
    """A peer with its model loaded."""

    version: str
    weight_bytes: int  # of what a decode step reads whole: an embedding of its own not counted

    def prefill_seconds(self, prompts: Prompts) -> float:
        """From the prompts to a token of each."""

    def decode_seconds(self, prompts: Prompts, new_tokens: int) -> float:
        """From the first token of each to the last."""

    def logits(self, ids: list[int]) -> npt.NDArray[np.float32] | None:
        """[T, vocab], or None where the program does not give them."""


def rate(program: Program, prompts: Prompts, new_tokens: int) -> float:
    """Tokens per second, after a warm-up of the same shape that is not counted; `new_tokens` 0: of the prompts."""
    if not new_tokens:
        program.prefill_seconds([ids[::-1] for ids in prompts])
        return sum(map(len, prompts)) / program.prefill_seconds(prompts)
    program.decode_seconds([ids[::-1] for ids in prompts], 4)
    return len(prompts) * (new_tokens - 1) / program.decode_seconds(prompts, new_tokens)


def write_logits(program: Program, tokens: str, out: str) -> bool:
    """Of every sequence of the .npy file `tokens` [sequences, T], to `out`; False where there are none."""
    sequences = np.load(tokens)
    rows: npt.NDArray[np.float32] | None = None
    for number, ids in enumerate(sequences.tolist()):
        found = program.logits(ids)
        if found is None:
            return False
        if rows is None:
            shape = (*sequences.shape, found.shape[1])
            rows = np.lib.format.open_memmap(out, mode="w+", dtype=np.float32, shape=shape)
        rows[number] = found
    return rows is not None


def answer(program: Program, question: dict[str, Any]) -> dict[str, Any]:
    if question["ask"] == "rate":
        return {"rate": rate(program, question["prompts"], question["new_tokens"])}
    return {"given": write_logits(program, question["tokens"], question["out"])}


def serve(program_of: Any) -> None:
    """Answer until the questions end. Whatever else writes to stdout goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    program: Program = program_of(sys.argv[1], int(sys.argv[2]))
    answers.write(json.dumps({"version": program.version, "weight_bytes": program.weight_bytes}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(answer(program, json.loads(line))) + "\n")
