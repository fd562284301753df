"""A KV cache in bytes: answers depend on nothing but the request, and differ from a wide cache's by what it rounds."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from llmc.ir.types import DType
from llmc.runtime import Engine
from tests.e2e.commands import Commands
from tests.e2e.engines import Engines
from tests.e2e.refusals import refused
from tests.e2e.test_same_answers import PROMPT_LENS, SIZES, asks, check_everything, check_preemption

KINDS = (DType.I8, DType.F8_E4M3)


def test_answers_depend_on_nothing_but_the_request(engines: Engines) -> None:
    """In company, in chunks, on any number of threads, preempted; with a window of 40."""
    folder = engines.engine(engines.model("mistral", **SIZES)[1], kv=DType.I8)
    given = asks(SIZES["vocab_size"], PROMPT_LENS, num_tokens=24)
    check_everything(folder, given)
    check_preemption(folder, given)


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
