"""What an engine refuses before anything runs: prompts, parameters, rows, chunks and limits."""

import numpy as np
import pytest
import reference_oracle as oracle

from llmc.runtime import Engine
from llmc.runtime.artifact.artifact import read_manifest
from llmc.runtime.cpu.limits import plan_limits
from llmc.runtime.errors import InvalidParameter
from llmc.runtime.step.limits import LoadOptions


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        [-1],
        [oracle.VOCAB],
        [2**31],
        ["a"],
        [True],
        [1.0],
        "",
        "\ud800",
        None,
        5,
        b"a",
        {1: 2},
        {1},
        np.zeros((2, 2), int),
    ],
)
def test_bad_prompts_are_refused_before_anything_runs(engine, prompt):
    with pytest.raises(InvalidParameter):
        engine.generate([[1], prompt], max_tokens=1)
    assert not engine.step()


def test_one_prompt_in_place_of_a_list_is_refused(engine):
    with pytest.raises(InvalidParameter, match=r"give \[prompt\]"):
        engine.generate("hello", max_tokens=1)


@pytest.mark.parametrize("params", [5, {"max_tokens": 1}, [None, 5], [{}]])
def test_parameters_of_another_type_are_refused(engine, params):
    with pytest.raises(InvalidParameter, match="SamplingParams"):
        engine.generate([[1], [2]], params)
    if not isinstance(params, list):
        with pytest.raises(InvalidParameter, match="SamplingParams"):
            engine.submit([1], params)
    assert not engine.step()


@pytest.mark.parametrize(
    "wanted", [{"rows": [1.5]}, {"rows": [True]}, {"rows": ["0"]}, {"chunks": [1.0, 2.0]}, {"chunks": ["3"]}]
)
def test_rows_and_chunks_that_are_no_integers_are_refused(engine, wanted):
    with pytest.raises(InvalidParameter):
        engine.logits([1, 2, 3], **wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch": 9}, r"max_batch must be in 1\.\.8, got 9"),
        ({"max_batch": 0}, "max_batch"),
        ({"max_seq_len": 257}, "max_seq_len"),
        ({"max_tokens": 4}, "max_batch is 8"),
        ({"max_rows": 2}, "max_rows is 2"),
        ({"threads": 0}, "threads"),
        ({"threads": True}, "threads"),
        ({"kv_memory": "1G"}, "kv_memory"),
        ({"kv_memory": 2**60}, "kv_memory"),
    ],
)
def test_limits_outside_the_envelope(shared_engine, options, message):
    with pytest.raises(InvalidParameter, match=message):
        Engine.load(shared_engine, **options)


def test_a_machine_of_more_cores_than_an_engine_takes_uses_as_many_as_that(shared_engine, monkeypatch):
    monkeypatch.setattr("llmc.runtime.cpu.limits.usable_cores", lambda: 5000)
    manifest = read_manifest(shared_engine)
    asked = LoadOptions(threads=1024)
    assert plan_limits(manifest, manifest.targets[0], LoadOptions()).threads == 1024
    assert plan_limits(manifest, manifest.targets[0], asked).threads == 1024
