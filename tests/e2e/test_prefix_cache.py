"""A warm engine answers as a cold one: ids and log-probabilities, bit for bit, of real kernels. Also with windows, from
a pool that evicts, and whatever lies in the blocks that nothing is known of."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from llmc.ir.types import DType
from llmc.runtime import Engine, SamplingParams
from llmc.runtime.kv.pool_sizes import sequence_bytes
from tests.e2e.engines import Engines
from tests.e2e.test_same_answers import SIZES, Answer, answer
from tests.e2e.test_windows import poison

PARAMS = SamplingParams(temperature=0.9, seed=4, ignore_eos=True, logprobs=3, max_tokens=4)
BLOCK = 32
LENGTHS = [k * BLOCK + d for k in (1, 2, 3) for d in (-1, 0, 1)]


KV = {"llama int8": DType.I8, "gemma3 fp8": DType.F8_E4M3}


@pytest.fixture(params=["llama", "gemma3", "mistral", *KV])
def folder(request: pytest.FixtureRequest, engines: Engines) -> Path:
    """Engines that other tests have built: all positions, windows of 8 beside them, windows of 40 alone. Keys and
    values in bytes are blocks like others."""
    sizes = SIZES if request.param == "mistral" else {}
    source = engines.model(request.param.split()[0], **sizes)[1]
    return engines.engine(source, kv=KV[request.param]) if request.param in KV else engines.engine(source)


def ids_of(engine: Engine, count: int, seed: int = 1) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(engine.manifest.model.num_valid_tokens) for _ in range(count)]


def ask(engine: Engine, prompt: Sequence[int], salt: str = "", poisoned: bool = False) -> tuple[Answer, int]:
    """An answer, and how many tokens of the prompt were found."""
    handle = engine.submit(prompt, PARAMS, salt=salt)
    while handle.completion is None:
        if poisoned:
            poison(engine)
        engine.step()
    engine.check_integrity()
    return answer(handle.completion), handle.completion.num_cached


def test_warm_is_cold_at_every_length_around_a_blocks_end(folder: Path) -> None:
    """Three times each; with what follows the cached part another token; under another salt."""
    with Engine.load(folder, threads=2, prefix_cache=False) as engine:
        ids = ids_of(engine, LENGTHS[-1])
        cold = {n: ask(engine, ids[:n])[0] for n in LENGTHS}
        other = {n: ask(engine, [*ids[:n], 3, 4])[0] for n in LENGTHS}
    with Engine.load(folder, threads=2) as engine:
        for length in LENGTHS:
            for turn in range(3):
                found, cached = ask(engine, ids[:length], poisoned=True)
                assert found == cold[length] and (cached == length - 1 or turn == 0), length
            found, cached = ask(engine, [*ids[:length], 3, 4], poisoned=True)
            assert found == other[length] and cached >= length  # an answer may have gone on with a 3 too
        assert ask(engine, ids[: LENGTHS[-1]], "another") == (cold[LENGTHS[-1]], 0)
        assert engine.num_free_blocks == sum(engine.device.num_blocks)


def test_warm_is_cold_after_evictions(folder: Path) -> None:
    """A pool that holds little more than one sequence, and prompts that share prefixes of any length."""
    with Engine.load(folder, threads=2, prefix_cache=False) as engine:
        trunk, longest = ids_of(engine, 110), 120
        prompts = [[*trunk[:n], *ids_of(engine, 3, n)] for n in (0, 20, 31, 32, 33, 64, 95, 110, 110)]
        expected = [ask(engine, prompt)[0] for prompt in prompts]
        memory = sequence_bytes(engine.artifact.target.kv, 64, longest) * 5 // 4
    with Engine.load(folder, threads=2, kv_memory=memory, max_tokens=64, max_batch=4, max_seq_len=longest) as engine:
        for seed in range(4):
            order = random.Random(seed).sample(range(len(prompts)), len(prompts))
            poison(engine)
            found = engine.generate([prompts[i] for i in order], PARAMS)
            assert [answer(completion) for completion in found] == [expected[i] for i in order]
            engine.check_integrity()
        counters = engine.core.blocks.counters
        assert counters.evictions > 0 and counters.tokens_saved > 0 and counters.copies > 0


@pytest.mark.soak
def test_thousands_of_pairs(engines: Engines) -> None:
    """R22: a prompt and one that shares its beginning, around blocks' ends, in pools that evict, with windows."""
    for family, sizes in (("llama", {}), ("gemma3", {}), ("mistral", SIZES)):
        folder = engines.engine(engines.model(family, **sizes)[1])
        with Engine.load(folder, threads=2) as engine:
            memory = sequence_bytes(engine.artifact.target.kv, engine.device.limits.max_tokens, 128) * 3
        with (
            Engine.load(folder, threads=2, prefix_cache=False) as cold,
            Engine.load(folder, threads=2, kv_memory=memory) as warm,
        ):
            rng, cached = random.Random(8), 0
            prompts = [ids_of(cold, 100, seed) for seed in range(6)]
            for _ in range(1000):
                length = max(1, min(100, rng.choice([0, 32, 64, 96]) + rng.randint(-2, 2)))
                prompt = [*rng.choice(prompts)[:length], *ids_of(cold, rng.randint(0, 9), rng.randrange(10))]
                found, num_cached = ask(warm, prompt, rng.choice(["", "", "", "b"]))
                assert found == ask(cold, prompt)[0]
                cached += num_cached
            assert cached > 10000 and warm.core.blocks.counters.evictions > 100
