"""Models with sliding windows, far past them: blocks behind the windows are given back, and no bit of any answer moves.

The same engine with a manifest that claims no window never gives a block back: what it says is what must be said.
"""

from __future__ import annotations

import ctypes
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.runtime import Engine, SamplingParams
from llmc.runtime.artifact.artifact import read_manifest, seal
from llmc.runtime.kv.pool_sizes import retentions
from llmc.runtime.loop.results import Completion
from tests.e2e.engines import Engines
from tests.e2e.test_families import TOLERANCE, random_chunks
from tests.e2e.test_same_answers import SIZES
from tests.tiny_models import example, hf_logits, relative_error

# engines that other tests have built: windows of 8 and 40 tokens, blocks of 32
MODELS: list[tuple[str, dict[str, Any], list[int | None], int]] = [
    ("gemma2", {"max_position_embeddings": 1200}, [None, 8], 700),
    ("gemma3", {}, [None, 8], 128),
    ("mistral", SIZES, [40], 320),
]


@pytest.fixture(params=MODELS, ids=lambda m: m[0])
def model(request: pytest.FixtureRequest, engines: Engines) -> tuple[str, dict[str, Any], Path, Path, int]:
    """Family, overrides, an engine, the same engine that never gives a block back, and a length."""
    family, overrides, windows, length = request.param
    folder = engines.engine(engines.model(family, **overrides)[1])
    manifest = read_manifest(folder)
    assert [group.window for group in manifest.targets[0].kv.groups] == windows
    keeping = folder.with_name("keeping-" + folder.name)
    with engines.once(keeping) as missing:
        if missing:
            shutil.copytree(folder, keeping)
            (keeping / "manifest.json").unlink()
            targets = []
            for target in manifest.targets:
                groups = tuple(replace(group, window=None) for group in target.kv.groups)
                targets.append(replace(target, kv=replace(target.kv, groups=groups)))
            seal(keeping, replace(manifest, targets=tuple(targets)))
    return family, overrides, folder, keeping, length


def poison(engine: Engine) -> None:
    """NaN in every block that nobody holds."""
    at = engine.device._pool.address  # type: ignore[attr-defined]
    for pool, group in zip(engine.core.blocks._pools, engine.artifact.target.kv.groups, strict=True):
        for block in pool.free:
            ctypes.memset(at + block * group.block_bytes, 0xFF, group.block_bytes)
        at += -(-pool.num_blocks * group.block_bytes // 64) * 64


def generate(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> tuple[list[Completion], int]:
    """Answers, stepped through with everything that is free poisoned, and the most blocks of windowed groups that any
    request held in a step of one token."""
    handles = [engine.submit(prompt, params) for prompt in prompts]
    most = 0
    windowed = [g for g, group in enumerate(engine.artifact.target.kv.groups) if group.window is not None]
    while any(handle.completion is None for handle in handles):
        poison(engine)
        engine.step()
        engine.check_integrity()
        running = [r.blocks for r in engine.core.scheduler.running if r.num_output > 1]
        most = max([most, *(blocks.num_held(g) for blocks in running if blocks for g in windowed)])
    return [handle.result() for handle in handles], most


def test_logits_are_transformers_and_those_of_an_engine_that_keeps_everything(
    model: tuple[str, dict[str, Any], Path, Path, int], engines: Engines
) -> None:
    family, overrides, folder, keeping, length = model
    hf, _ = engines.model(family, **overrides)
    ids, positions = example(1, length, hf.config.vocab_size)
    sequence = ids[0].tolist()
    with Engine.load(keeping, max_rows=min(length, 512), threads=2) as engine:
        expected = engine.logits(sequence)
    assert relative_error(expected, hf_logits(hf, ids, positions)[0]) < TOLERANCE
    for max_tokens, seed in ((None, 0), (48, 1), (32, 2)):
        with Engine.load(folder, max_tokens=max_tokens, max_rows=max_tokens or min(length, 512), threads=2) as engine:
            chunks = random_chunks(length, max_tokens or 60, seed) if seed else None
            poison(engine)
            assert np.array_equal(engine.logits(sequence, chunks=chunks), expected)
            assert engine.num_free_blocks == sum(engine.device.num_blocks)


def test_answers_are_those_of_an_engine_that_keeps_everything(
    model: tuple[str, dict[str, Any], Path, Path, int], engines: Engines
) -> None:
    family, overrides, folder, keeping, length = model
    rng = random.Random(4)
    vocab = engines.model(family, **overrides)[0].config.vocab_size
    prompts = [[rng.randrange(vocab) for _ in range(length * part // 8)] for part in (1, 5, 3)]
    params = SamplingParams(temperature=0.8, seed=9, ignore_eos=True, logprobs=1, max_tokens=length // 3)
    with Engine.load(keeping, threads=2) as engine:
        expected, held = generate(engine, prompts, params)
        assert held == 0  # it has no windowed group
    with Engine.load(folder, max_tokens=40, max_seq_len=length, threads=2) as engine:
        found, held = generate(engine, prompts, params)
        # between steps: no more than the positions that the next token will read lie in
        window = max(group.window or 0 for group in engine.artifact.target.kv.groups)
        assert 1 <= held <= -(-(window - 2) // 32) + 1
        kv, step_tokens = engine.artifact.target.kv, engine.device.limits.max_tokens
        longest = max(len(prompt) for prompt in prompts) + length // 3
        needs = [retention.most_blocks(0, longest) for retention in retentions(kv, step_tokens)]
        memory = sum(count * group.block_bytes for count, group in zip(needs, kv.groups, strict=True))
    with Engine.load(folder, max_tokens=40, max_seq_len=longest, kv_memory=memory, threads=2) as engine:
        assert engine.device.num_blocks == tuple(needs)
        scarce, _ = generate(engine, prompts, params)
    for one, other, third in zip(expected, found, scarce, strict=True):
        assert one.error is None and len(one.token_ids) == length // 3
        assert one.token_ids == other.token_ids == third.token_ids
        assert one.logprobs == other.logprobs == third.logprobs
