"""Whole models through the CUDA device, on the emulated driver: emulated.py CHECK ENGINE OUT.npz [ARGUMENT ...].

Each check saves the logits it computed, and fails where bits differ that must not.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc.runtime import Engine, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=3)


def ids_of(length: int, vocab: int, seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, vocab, length)]


def random_chunks(length: int, largest: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    chunks: list[int] = []
    while (left := length - sum(chunks)) > 0:
        chunks.append(min(left, rng.choice([1, 2, rng.randint(1, largest)])))
    return chunks


def one_arithmetic(engine: Engine, length: str) -> NDArray[np.float32]:
    """Steps as large as they get, random chunks, token by token; alone and in company: the same bits."""
    ids = ids_of(int(length), engine.manifest.model.num_valid_tokens, 1)
    whole = engine.logits(ids)
    for chunks in (random_chunks(len(ids), 12, 2), [1] * len(ids)):
        differing = np.flatnonzero((engine.logits(ids, chunks=chunks) != whole).any(1))
        assert not differing.size, f"chunks {chunks}: positions {differing} differ"
    in_company(engine)
    engine.check_integrity()
    return whole


def in_company(engine: Engine) -> None:
    """Answers of a batch are those that each prompt gets alone, log-probabilities too."""
    vocab = engine.manifest.model.num_valid_tokens
    prompts = [ids_of(length, vocab, length) for length in (3, 11, 6)]
    together = engine.generate(prompts, GREEDY)
    for prompt, found in zip(prompts, together, strict=True):
        (alone,) = engine.generate([prompt], GREEDY)
        assert alone.token_ids == found.token_ids, (alone.token_ids, found.token_ids)
        assert alone.logprobs == found.logprobs


def teacher_forced(engine: Engine, length: str) -> NDArray[np.float32]:
    """Logits of every position of one sequence."""
    return engine.logits(ids_of(int(length), engine.manifest.model.num_valid_tokens, 1))


CHECKS: dict[str, Callable[..., NDArray[np.float32]]] = {f.__name__: f for f in (one_arithmetic, teacher_forced)}


def main(check: str, folder: str, out: str, *arguments: str) -> None:
    limits: dict[str, Any] = {"max_rows": 16, "max_tokens": 16} if check == "one_arithmetic" else {}
    with Engine.load(Path(folder), device="cuda", **limits) as engine:
        np.savez(out, logits=CHECKS[check](engine, *arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
