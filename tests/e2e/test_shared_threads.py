"""Two engines on one pool of threads: each answers as on its own, however their steps alternate."""

from __future__ import annotations

import os
import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from llmc.ir.formats import Scheme
from llmc.runtime import SamplingParams
from llmc.runtime.cpu.threads import SharedThreads
from llmc.runtime.errors import InvalidParameter
from llmc.runtime.loop.core import EngineCore
from llmc.runtime.loop.request import Request
from llmc.runtime.step.limits import LoadOptions
from tests.e2e.engines import Engines

THREADS = 3
OPTIONS = LoadOptions(threads=THREADS)


@pytest.fixture
def folders(engines: Engines, speaking: Path) -> list[Path]:
    """Of two architectures and number formats, and the first one once more."""
    return [engines.engine(speaking), engines.engine(engines.model("gemma3")[1], Scheme.INT8), engines.engine(speaking)]


def ask(core: EngineCore, number: int) -> list[Request]:
    rng = random.Random(number)
    vocab = core.artifact.manifest.model.num_valid_tokens
    params = [SamplingParams(temperature=t, max_tokens=8, ignore_eos=True) for t in (0, 1.0, 0.7)]
    prompts = [[rng.randrange(vocab) for _ in range(rng.randint(1, 40))] for _ in params]
    requests = [core.request(ids, one, number) for ids, one in zip(prompts, params, strict=True)]
    for request in requests:
        core.add(request)
    return requests


def tokens(requests: list[Request]) -> list[list[int]]:
    return [request.tokens.ids.tolist() for request in requests]


def num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def alone(folder: Path, number: int) -> list[list[int]]:
    core = EngineCore.load(folder, OPTIONS)
    requests = ask(core, number)
    while core.step() is not None:
        pass
    core.close()
    return tokens(requests)


def test_answers_are_as_alone(folders: list[Path]) -> None:
    expected = [alone(folder, number) for number, folder in enumerate(folders)]
    before = num_threads()
    with ExitStack() as stack:
        shared = stack.enter_context(SharedThreads())
        cores = [EngineCore.load(folder, OPTIONS, threads=shared) for folder in folders]
        for core in cores:
            stack.callback(core.close)
        assert num_threads() == before + THREADS - 1
        asked = [ask(core, number) for number, core in enumerate(cores)]
        while [core for core in cores if core.step() is not None]:
            pass
        assert [tokens(requests) for requests in asked] == expected
        cores[0].close()  # whose library made the pool
        again = ask(cores[1], 1)
        while cores[1].step() is not None:
            pass
        assert tokens(again) == expected[1]
        with pytest.raises(InvalidParameter, match="equally many, got 2 and 3"):
            EngineCore.load(folders[0], LoadOptions(threads=2), threads=shared)
    assert num_threads() == before
