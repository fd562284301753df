"""Whole models through the CUDA device, on the emulated driver: emulated.py CHECK ENGINE OUT.npz [ARGUMENT ...].

Each check saves the logits it computed, and fails where bits differ that must not.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc.runtime import Engine, SamplingParams
from llmc.runtime.artifact.artifact import read_manifest
from llmc.runtime.loop.request import FinishReason

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


def random_request(rng: random.Random, vocab: int, shared: list[int]) -> tuple[list[int], SamplingParams]:
    """Any crossing of what a request may ask for."""

    def ids(most: int) -> list[int]:
        return [rng.randrange(vocab) for _ in range(rng.randint(1, most))]

    asked: dict[str, Any] = dict(
        temperature=rng.choice([0.0, 0.7, 1.5]),
        seed=rng.randrange(2**64),
        max_tokens=rng.randint(1, 24),
        ignore_eos=rng.random() < 0.7,
        logprobs=rng.choice([None, 0, 3, 20]),
    )
    if rng.random() < 0.5:
        asked["logit_bias"] = {i: rng.uniform(-100, 100) for i in ids(60)}
    if rng.random() < 0.4:
        asked |= {"stop_token_ids": tuple(ids(5)), "min_tokens": rng.randint(0, asked["max_tokens"])}
    if rng.random() < 0.4:
        asked |= {"repetition_penalty": 1.4, "frequency_penalty": 0.3}
    if rng.random() < 0.4:
        asked |= {"top_k": rng.choice([1, 5, 50]), "top_p": 0.8, "min_p": 0.02}
    return (shared if rng.random() < 0.6 else []) + ids(14), SamplingParams(**asked)


def crossed(engine: Engine, seed: str, rounds: str) -> NDArray[np.float32]:
    """Random requests that come and go one by one, preempt each other and are cancelled, with scores in between: what
    each has answered is what it answers alone, bit for bit, and nothing is kept."""
    rng, free, preemptions = random.Random(int(seed)), engine.num_free_blocks, 0
    vocab = engine.manifest.model.num_valid_tokens
    for _ in range(int(rounds)):
        shared = [rng.randrange(vocab) for _ in range(17)]
        asked = [random_request(rng, vocab, shared) for _ in range(6)]
        alone = [engine.generate([prompt], params)[0] for prompt, params in asked]
        handles = []
        for prompt, params in asked:
            handles.append(engine.submit(prompt, params))
            for _ in range(rng.choice([0, 1, 3])):
                engine.step()
        while any(handle.completion is None for handle in handles):
            engine.step()
            engine.check_integrity()
            if rng.random() < 0.05:
                rng.choice(handles).cancel()
        for handle, expected, request in zip(handles, alone, asked, strict=True):
            found = handle.result()
            preemptions += found.num_preemptions
            count = len(found.token_ids)
            assert found.error is None and found.token_ids == expected.token_ids[:count], (request, found, expected)
            assert found.logprobs == expected.logprobs[: len(found.logprobs)], (request, found, expected)
            cancelled = found.finish_reason is FinishReason.CANCELLED
            assert cancelled or (count, found.finish_reason) == (len(expected.token_ids), expected.finish_reason)
        assert engine.num_free_blocks == free
    assert preemptions, "the pool was large enough for all"
    return engine.logits([1, 2, 3])


def cached(engine: Engine) -> NDArray[np.float32]:
    """Prefixes that are found around a block's end, whole and in part, in a pool that evicts: what each answers is what
    it answers where nothing is found."""
    ids = ids_of(66, engine.manifest.model.num_valid_tokens, 1)
    for length in (31, 32, 33, 64, 65):
        for prompt in (ids[:length], [*ids[: length - 4], 5, 6, 7]):
            (cold,) = engine.generate([prompt], GREEDY, salt=f"{length} {len(prompt)}")
            found = engine.generate([prompt] * 3, GREEDY)
            hits = [completion.num_cached for completion in (cold, *found)]
            assert hits[0] == 0 and hits[3] == len(prompt) - 1, (len(prompt), hits, engine.device.num_blocks)
            assert all((f.token_ids, f.logprobs) == (cold.token_ids, cold.logprobs) for f in found)
            engine.check_integrity()
    counters = engine.core.blocks.counters
    assert counters.evictions and counters.copies and engine.num_free_blocks == sum(engine.device.num_blocks)
    return engine.logits(ids[:3])


def swapped(engine: Engine) -> NDArray[np.float32]:
    """Requests that preempt each other, whose blocks are copied to host memory and back whenever that is possible: what
    each answers is what it answers alone."""
    blocks, vocab = engine.core.blocks, engine.manifest.model.num_valid_tokens
    assert sum(blocks._space.num_slots) > 0
    blocks._space = replace(blocks._space, seconds_per_byte=0.0)
    blocks.begin_anew()
    params = SamplingParams(temperature=0.9, seed=5, max_tokens=30, ignore_eos=True, repetition_penalty=1.3, logprobs=2)
    prompts = [ids_of(length, vocab, length) for length in (30, 31, 28, 33)]
    alone = [engine.generate([prompt], params, salt="alone")[0] for prompt in prompts]
    for cancelled in (None, 2):
        handles = [engine.submit(prompt, params, salt=f"{cancelled}") for prompt in prompts]
        while any(handle.completion is None for handle in handles):
            engine.step()
            engine.check_integrity()
            if cancelled is not None and handles[cancelled]._live.request.num_preemptions:
                handles[cancelled].cancel()
        found = [handle.result() for handle in handles]
        assert sum(one.num_preemptions for one in found) > 0
        for number, (one, other) in enumerate(zip(found, alone, strict=True)):
            assert number == cancelled or (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)
        assert engine.num_free_blocks == sum(engine.device.num_blocks) and not blocks._swap.kept
    counted = blocks.counters
    assert counted.swapped_out >= counted.swapped_in > 0, counted
    return engine.logits(prompts[0], rows=[0])


def teacher_forced(engine: Engine, length: str) -> NDArray[np.float32]:
    """Logits of every position of one sequence."""
    return engine.logits(ids_of(int(length), engine.manifest.model.num_valid_tokens, 1))


CHECKS: dict[str, Callable[..., NDArray[np.float32]]] = {
    f.__name__: f for f in (one_arithmetic, under_pressure, crossed, cached, swapped, teacher_forced)
}


def main(check: str, folder: str, out: str, *arguments: str) -> None:
    limits: dict[str, Any] = {}
    if check == "one_arithmetic":
        limits = {"max_rows": 16, "max_tokens": 16}
    if check in ("under_pressure", "crossed"):  # three blocks of each KV group: one sequence of 64 fits, two do not
        block_bytes = sum(group.block_bytes for group in read_manifest(Path(folder)).targets[0].kv.groups)
        limits = {"max_seq_len": 64, "max_batch": 3, "kv_memory": 3 * block_bytes}
    if check == "cached":
        block_bytes = sum(group.block_bytes for group in read_manifest(Path(folder)).targets[0].kv.groups)
        limits = {"max_seq_len": 72, "max_batch": 3, "kv_memory": 9 * block_bytes}
    if check == "swapped":
        block_bytes = sum(group.block_bytes for group in read_manifest(Path(folder)).targets[0].kv.groups)
        limits = {"max_seq_len": 64, "max_batch": 4, "kv_memory": 4 * block_bytes, "swap_memory": 8 * block_bytes}
    with Engine.load(Path(folder), device="cuda", **limits) as engine:
        np.savez(out, logits=CHECKS[check](engine, *arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
