"""A KV cache in bytes: answers depend on nothing but the request, and differ from a wide cache's by what it rounds."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from llmc.ir.formats import Scheme
from llmc.ir.types import DType
from llmc.runtime import Engine, SamplingParams
from llmc.runtime.kv.pool_sizes import sequence_bytes
from tests.e2e.commands import Commands
from tests.e2e.engines import Engines
from tests.e2e.refusals import refused
from tests.e2e.test_same_answers import PROMPT_LENS, SIZES, answer, asks, check_everything, check_preemption

KINDS = (DType.I8, DType.F8_E4M3)


def test_answers_depend_on_nothing_but_the_request(engines: Engines) -> None:
    """In company, in chunks, on any number of threads, preempted; with a window of 40."""
    folder = engines.engine(engines.model("mistral", **SIZES)[1], kv=DType.I8)
    given = asks(SIZES["vocab_size"], PROMPT_LENS, num_tokens=24)
    check_everything(folder, given)
    check_preemption(folder, given)


CROSSED = [
    pytest.param("gpt2", {"n_embd": 65, "n_head": 5, "n_inner": 97}, Scheme.INT4, DType.I8, id="odd-heads-tied-int4"),
    pytest.param("qwen2", {"sliding_window": 33, "vocab_size": 35}, Scheme.named("nl4"), DType.F8_E4M3, id="window"),
]


@pytest.mark.parametrize(("family", "sizes", "scheme", "kv"), CROSSED)
def test_samples_share_bytes(family: str, sizes: dict[str, int], scheme: Scheme, kv: DType, engines: Engines) -> None:
    """Several answers to prompts of one beginning, which end around a block's end, in company, preempted, beside others
    that are cancelled: each as alone, without the prefix cache."""
    folder = engines.engine(engines.model(family, **sizes)[1], scheme, kv=kv)
    params = SamplingParams(temperature=1.1, seed=5, max_tokens=20, ignore_eos=True, logprobs=1)
    rng = random.Random(4)
    whole = [rng.randrange(35) for _ in range(107)]
    prompts = [whole[:length] for length in (1, 31, 32, 33, 64, 65, 96, 107)]
    with Engine.load(folder, threads=1, prefix_cache=False) as engine:
        expected = [[answer(one) for one in engine.samples(prompt, params, n=3).result()] for prompt in prompts]
        longest = len(whole) + 20
        memory = sequence_bytes(engine.artifact.target.kv, engine.manifest.limits.max_tokens, longest)
    with Engine.load(folder, threads=2, kv_memory=2 * memory, max_batch=6, max_tokens=17) as engine:
        free = engine.num_free_blocks
        groups = [engine.samples(prompt, params, n=3) for prompt in prompts]
        cancelled = [engine.samples(prompt, params, n=2) for prompt in prompts[3:6]]
        steps = 0
        while engine.step():
            engine.check_integrity()
            steps += 1
            if steps % 9 == 3 and cancelled:
                cancelled.pop().cancel()
        assert [[answer(one) for one in group.result()] for group in groups] == expected
        assert engine.num_free_blocks == free and engine.core.scheduler.num_preemptions > 0 and not cancelled


@pytest.mark.parametrize("kv", KINDS)
def test_log_probabilities_are_near_those_of_a_wide_cache(kv: DType, engines: Engines) -> None:
    source = engines.model("llama")[1]
    found = []
    for kept in (DType.F32, kv):
        with Engine.load(engines.engine(source, kv=kept)) as engine:
            rng = random.Random(2)
            ids = [rng.randrange(engine.manifest.model.num_valid_tokens) for _ in range(100)]
            found.append(engine.score(ids))
    error = np.abs(found[0] - found[1])
    assert 0 < error.mean() < 2.0**-6 and error.max() < 2.0**-3


def test_the_manifest_says_what_a_cache_is_kept_in(engines: Engines) -> None:
    folder = engines.engine(engines.model("llama")[1], kv=DType.I8)
    (target,) = json.loads((folder / "manifest.json").read_text())["targets"]
    assert {slot["dtype"] for group in target["kv"]["groups"] for slot in group["slots"]} == {"i8"}


def test_gpus_do_not_keep_bytes_yet(tmp_path: Path, engines: Engines, llmc: Commands) -> None:
    source, out = engines.model("llama")[1], tmp_path / "out"
    done = llmc.run("build", source, "--target", "h100", "--kv-dtype", "int8", "-o", out)
    refused(done, "target h100: no kernels for a KV cache in int8: use bf16, f16")
    assert not out.exists()
