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
from llmc.runtime.artifact import read_manifest

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


def under_pressure(engine: Engine) -> NDArray[np.float32]:
    """Requests that preempt each other over a pool too small for them, penalised and sampled, one cancelled midway:
    the others answer as they do alone, and nothing is kept."""
    vocab = engine.manifest.model.num_valid_tokens
    prompts = [ids_of(length, vocab, length) for length in (33, 20, 30)]
    params = [
        SamplingParams(temperature=0.9, seed=5, max_tokens=6, ignore_eos=True, repetition_penalty=1.3, logprobs=2),
        SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True),
        SamplingParams(temperature=1.2, top_k=9, seed=6, max_tokens=6, ignore_eos=True, logit_bias={7: 2.0}),
    ]
    free = engine.num_free_blocks
    handles = [engine.submit(p, q) for p, q in zip(prompts, params, strict=True)]
    for _ in range(4):
        engine.step()
        engine.check_integrity()
    handles[1].cancel()
    together = [handle.result() for handle in handles]
    assert engine.num_free_blocks == free
    for number in (0, 2):
        (alone,) = engine.generate([prompts[number]], params[number])
        assert alone.error is None and alone.token_ids == together[number].token_ids
        assert alone.logprobs == together[number].logprobs
    return engine.logits(prompts[0], rows=[32])


def teacher_forced(engine: Engine, length: str) -> NDArray[np.float32]:
    """Logits of every position of one sequence."""
    return engine.logits(ids_of(int(length), engine.manifest.model.num_valid_tokens, 1))


CHECKS: dict[str, Callable[..., NDArray[np.float32]]] = {
    f.__name__: f for f in (one_arithmetic, under_pressure, teacher_forced)
}


def main(check: str, folder: str, out: str, *arguments: str) -> None:
    limits: dict[str, Any] = {}
    if check == "one_arithmetic":
        limits = {"max_rows": 16, "max_tokens": 16}
    if check == "under_pressure":  # three blocks of each KV group: one sequence of 64 fits, two do not
        block_bytes = sum(group.block_bytes for group in read_manifest(Path(folder)).targets[0].kv.groups)
        limits = {"max_seq_len": 64, "max_batch": 3, "kv_memory": 3 * block_bytes}
    with Engine.load(Path(folder), device="cuda", **limits) as engine:
        np.savez(out, logits=CHECKS[check](engine, *arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
