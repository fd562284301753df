"""An answer does not depend on company, on when it joined, on chunks, or on threads: same tokens and log-probabilities,
bit for bit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from llmc.compiler.build import BuildOptions, build
from llmc.compiler.sources.demo import fetch_demo
from llmc.ir.formats import Scheme
from llmc.runtime import Engine, SamplingParams
from llmc.runtime.kv.pool_sizes import sequence_bytes
from llmc.runtime.loop.results import Completion, TokenLogprobs
from tests.e2e.engines import Engines

# several panels, K slices and scale groups with tails; a window that prompts pass; prompts around the KV block of 32
CPU_SCHEMES = [Scheme.F32, Scheme.BF16, Scheme.INT8, Scheme.INT4, Scheme.named("fp8")]  # one of each kind of tile
SIZES = {
    "hidden_size": 320,
    "intermediate_size": 704,
    "num_attention_heads": 10,
    "head_dim": 32,
    "num_hidden_layers": 3,
    "vocab_size": 1003,
    "max_position_embeddings": 320,
    "sliding_window": 40,
}
PROMPT_LENS = (1, 5, 31, 32, 33, 64, 100, 170)


@dataclass(frozen=True)
class Ask:
    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True)
class Answer:
    """What must not change."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


def asks(vocab: int, prompt_lens: Sequence[int], num_tokens: int) -> list[Ask]:
    """Greedy and sampled in turn, the sampled ones with everything that sampling knows."""
    rng = random.Random(7)
    result = []
    for index, length in enumerate(prompt_lens):
        prompt = tuple(rng.randrange(vocab) for _ in range(length))
        always: dict[str, Any] = {"max_tokens": num_tokens, "ignore_eos": True, "logprobs": 5, "seed": 1000 + index}
        penalties: dict[str, Any] = {"repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.2}
        filters: dict[str, Any] = {"top_k": 200, "top_p": 0.97, "min_p": 0.001, "logit_bias": {7: 2.0}}
        kinds = [{"temperature": 0.0}, {"temperature": 0.9, **filters, **penalties}]
        kinds += [{"temperature": 0.0, **penalties}, {"temperature": 1.3}]
        result.append(Ask(prompt, SamplingParams(**always, **kinds[index % 4])))
    return result


def answer(completion: Completion) -> Answer:
    assert completion.error is None
    return Answer(completion.token_ids, completion.logprobs)


def alone(folder: Path, given: Sequence[Ask], **load: Any) -> list[Answer]:
    with Engine.load(folder, **load) as engine:
        return [answer(engine.generate([ask.prompt], ask.params)[0]) for ask in given]


def together(folder: Path, given: Sequence[Ask], **load: Any) -> list[Answer]:
    with Engine.load(folder, **load) as engine:
        found = engine.generate([ask.prompt for ask in given], [ask.params for ask in given])
        engine.check_integrity()
        return [answer(completion) for completion in found]


def joining(folder: Path, given: Sequence[Ask], seed: int, **load: Any) -> list[Answer]:
    """In random order, after random numbers of steps of those before."""
    rng = random.Random(seed)
    order = rng.sample(range(len(given)), len(given))
    with Engine.load(folder, **load) as engine:
        handles = {}
        for index in order:
            handles[index] = engine.submit(given[index].prompt, given[index].params)
            for _ in range(rng.choice([0, 1, 2, 5])):
                engine.step()
        return [answer(handles[index].result()) for index in range(len(given))]


def check_everything(folder: Path, given: Sequence[Ask]) -> None:
    expected = alone(folder, given, threads=1)
    assert len({a.tokens for a in expected}) == len(given)  # nothing here is the same by itself
    assert len({one.logprob for a in expected for one in a.logprobs}) > 4 * len(given)
    for threads in (2, 3):
        assert alone(folder, given, threads=threads) == expected
    for threads in (1, 2, 3):
        assert together(folder, given, threads=threads, max_batch=8) == expected
    rng = random.Random(3)
    for seed in range(4):
        # the step's tokens, shared by whoever runs, are what cuts prompts into chunks
        max_tokens = rng.randint(8, 90)
        assert joining(folder, given, seed, threads=1 + seed % 3, max_batch=8, max_tokens=max_tokens) == expected
        assert alone(folder, given, threads=2, max_batch=1, max_tokens=rng.randint(1, 40)) == expected


def check_preemption(folder: Path, given: Sequence[Ask]) -> None:
    """A pool that just holds the longest request."""
    expected = alone(folder, given, threads=2)
    with Engine.load(folder, threads=2) as engine:
        longest = max(len(ask.prompt) + (ask.params.max_tokens or 0) for ask in given)
        kv, step_tokens = engine.artifact.target.kv, engine.manifest.limits.max_tokens
        memory = sequence_bytes(kv, step_tokens, longest)
    with Engine.load(folder, threads=2, kv_memory=memory) as engine:
        found = engine.generate([ask.prompt for ask in given], [ask.params for ask in given])
        assert sum(completion.num_preemptions for completion in found) > 0
        assert [answer(completion) for completion in found] == expected


def some(schemes: Sequence[Scheme]) -> list[ParameterSet]:
    """Those whose kernels differ most; the others with --soak."""
    quick = {"f32", "bf16", "int8", "int4g64", "fp8"}
    return [pytest.param(s, marks=() if str(s) in quick else pytest.mark.soak, id=str(s)) for s in schemes]


@pytest.mark.parametrize("scheme", some(CPU_SCHEMES))
def test_answers_of_a_tiny_model(scheme: Scheme, engines: Engines) -> None:
    _, source = engines.model("mistral", **SIZES)
    folder = engines.engine(source, scheme)
    given = asks(SIZES["vocab_size"], PROMPT_LENS, num_tokens=24)
    check_everything(folder, given)
    check_preemption(folder, given)


@pytest.mark.soak
@pytest.mark.parametrize("scheme", CPU_SCHEMES, ids=str)
def test_answers_of_smollm2(scheme: Scheme, engines: Engines) -> None:
    folder = engines.root / f"smollm2-{scheme.name}.engine"
    build(BuildOptions(str(fetch_demo("smollm2")), folder, scheme=scheme), engines.progress)
    given = asks(49152, (1, 7, 32, 65, 130, 200, 333, 600), num_tokens=32)
    check_everything(folder, given)
    check_preemption(folder, given)


def test_logits_of_chunks(engines: Engines) -> None:
    """Raw logits of every position, whatever the chunks, in the formats whose kernels differ by the number of rows."""
    _, source = engines.model("mistral", **SIZES)
    rng = random.Random(5)
    ids = [rng.randrange(SIZES["vocab_size"]) for _ in range(200)]
    for scheme in map(Scheme.named, ("f32", "bf16", "int8", "int4", "fp8")):
        with Engine.load(engines.engine(source, scheme), threads=2, max_rows=200) as engine:
            expected = engine.logits(ids).tobytes()
            for _ in range(4):
                chunks: list[int] = []
                while sum(chunks) < len(ids):
                    chunks.append(min(rng.choice([1, 2, 3, 16, rng.randint(1, 100)]), len(ids) - sum(chunks)))
                assert engine.logits(ids, chunks=chunks).tobytes() == expected, chunks
