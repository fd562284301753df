"""SamplingParams: every field at and beyond its bounds, and nothing but InvalidParameter."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest

from llmc.runtime.artifact.manifest import GenerationDefaults
from llmc.runtime.errors import InvalidParameter
from llmc.runtime.step.params import SamplingParams, model_defaults
from llmc.runtime.step.row_sampling import FORBID, SAMPLING_RECORD, RowSampling

NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
POINTED = (("bias_ids", ctypes.c_int32), ("bias", ctypes.c_float))
INTEGERS = ("top_k", "seed", "max_tokens", "min_tokens", "logprobs")
ODD = [math.nan, math.inf, -math.inf, "1", [], {}, 10**400, 2**5000, object(), True, 1j]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [*ODD, None, 1e308, -1e308])
def test_numbers_refuse_what_is_no_number_in_range(name: str, value: Any) -> None:
    with pytest.raises(InvalidParameter, match=name) as caught:
        SamplingParams(**{name: value})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [*ODD, 1.0, 1.5, -1, -(2**70), 2**64])
def test_integers_refuse_what_is_no_integer_in_range(name: str, value: Any) -> None:
    with pytest.raises(InvalidParameter, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", ["stop", "stop_token_ids"])
@pytest.mark.parametrize("value", [None, 5, math.nan, True, b"ab", object(), {1: 2}])
def test_lists_refuse_what_is_no_list(name: str, value: Any) -> None:
    with pytest.raises(InvalidParameter, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 1e-6},
        {"top_p": 1},
        {"top_p": 1e-6},
        {"min_p": 0},
        {"min_p": 1},
        {"repetition_penalty": 0.01},
        {"presence_penalty": -2},
        {"top_k": 0},
        {"top_k": 2**31 - 1},
        {"seed": 0},
        {"seed": 2**64 - 1},
        {"logprobs": 0},
        {"logprobs": 20},
        {"max_tokens": 1, "min_tokens": 1},
        {"stop": "x"},
        {"stop": ("x" * 256,) * 16},
        {"stop": ["a", "b"]},
        {"logit_bias": {i: 100 for i in range(1024)}},
        {"stop_token_ids": [0, 5]},
    ],
)
def test_the_bounds_themselves_are_allowed(fields: Any) -> None:
    SamplingParams(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.1}, r"temperature, unless 0, must be in \[1e-06, 1e\+06\], got -0.1"),
        ({"top_p": 0}, r"top_p must be in \[1e-06, 1\], got 0"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_p": 1e-50}, "top_p"),
        ({"temperature": 1e-40}, "temperature"),
        ({"min_p": 1.01}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens must be in 1"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens is 6, more than max_tokens 5"),
        ({"logprobs": 21}, r"logprobs must be in 0\.\.20, got 21"),
        ({"stop": ("x",) * 17}, "stop has 17 strings"),
        ({"stop": ("",)}, "each stop"),
        ({"stop": ("x" * 257,)}, "each stop"),
        ({"stop": (3,)}, "each stop"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
        ({"stop_token_ids": ("a",)}, "stop_token_ids"),
        ({"stop_token_ids": tuple(range(1025))}, "stop_token_ids has 1025"),
        ({"logit_bias": {-1: 0}}, "logit_bias token id"),
        ({"logit_bias": {"abc": 0}}, "logit_bias token id"),
        ({"logit_bias": {1: 100.1}}, r"logit_bias\[1\]"),
        ({"logit_bias": {1: math.nan}}, r"logit_bias\[1\]"),
        ({"logit_bias": dict.fromkeys(range(1025), 0)}, "1025 entries"),
        ({"logit_bias": [1]}, "must map"),
        ({"ignore_eos": 1}, "ignore_eos"),
    ],
)
def test_refusals_name_the_field_and_the_range(fields: Any, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        SamplingParams(**fields)


@pytest.mark.parametrize("fields", [{"logit_bias": {300: 1}}, {"stop_token_ids": (300,)}])
def test_ids_beyond_the_vocabulary(fields: Any) -> None:
    params = SamplingParams(**fields)
    params.check_vocabulary(301)
    with pytest.raises(InvalidParameter, match="token id 300 is not below 300"):
        params.check_vocabulary(300)


def test_the_bias_cannot_be_changed_behind_our_back() -> None:
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = 99.0
    assert params.logit_bias[1] == 2.0
    with pytest.raises(TypeError):
        params.logit_bias[1] = 3.0  # type: ignore[index]  # what is refused


def test_rows_forbid_stops_until_min_tokens() -> None:
    row = RowSampling(SamplingParams(min_tokens=2, logit_bias={7: 1.0, 9: 2.0}), 5, 3, (9, 4))
    for history_len, early in ((3, True), (4, True), (5, False)):
        records = np.zeros(2, SAMPLING_RECORD)
        row.write(records.view(np.uint8).data, 1, 0, history_len)
        bias = row._early_bias if early else row._bias
        assert records["bias_ids"].tolist() == [0, bias.ids.ctypes.data]
        assert records["num_bias"].tolist() == [0, len(bias.ids)]
        assert records["position"][1] == records["history_len"][1] == history_len
    assert dict(zip(row._early_bias.ids.tolist(), row._early_bias.values.tolist(), strict=True)) == {
        7: 1.0,
        9: np.float32(FORBID),
        4: np.float32(FORBID),
    }


def test_a_record_says_what_was_asked() -> None:
    """Every field, the largest of its range: the record is written in one go, by a format of its own."""
    asked: dict[str, Any] = {
        "temperature": 0.7,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1e6,
        "top_k": 2**31 - 1,
    }
    params = SamplingParams(presence_penalty=-2, frequency_penalty=3, logprobs=20, logit_bias={3: 1.5, 8: -2}, **asked)
    records = np.zeros(1, SAMPLING_RECORD)
    RowSampling(params, 2**64 - 1, 3, (), sample_index=2**32 - 1).write(records.view(np.uint8).data, 0, 2**63, 9)
    found = {name: records[name][0] for name in SAMPLING_RECORD.names or ()}
    for name, value in asked.items():
        assert found.pop(name) == np.asarray(value, SAMPLING_RECORD[name]), name
    ids, bias = (ctypes.cast(int(found.pop(name)), ctypes.POINTER(kind)) for name, kind in POINTED)
    assert (ids[:2], bias[:2]) == ([3, 8], [1.5, -2])
    assert {name: value.item() for name, value in found.items()} == {
        "presence_penalty": -2, "frequency_penalty": 3, "num_logprobs": 20, "seed": 2**64 - 1,
        "sample_index": 2**32 - 1, "position": 9, "history": 2**63, "history_len": 9, "prompt_len": 3, "num_bias": 2,
    }  # fmt: skip


def test_defaults_of_the_model() -> None:
    assert model_defaults(GenerationDefaults()) == {"temperature": 0.0}
    assert model_defaults(GenerationDefaults(do_sample=False, temperature=0.6, top_k=7)) == {
        "temperature": 0.0,
        "top_k": 7,
    }
    assert model_defaults(GenerationDefaults(do_sample=True, temperature=0.6)) == {"temperature": 0.6}
    assert model_defaults(GenerationDefaults(do_sample=True)) == {}
    assert model_defaults(GenerationDefaults(do_sample=True, max_new_tokens=9)) == {"max_tokens": 9}
    stated = GenerationDefaults(do_sample=True, presence_penalty=1.5, min_new_tokens=5, stop_strings=("x",))
    assert model_defaults(stated) == {"presence_penalty": 1.5, "min_tokens": 5, "stop": ("x",)}
    for most in (3, np.int64(3)):
        assert model_defaults(stated, max_tokens=most)["min_tokens"] == 3


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"temperature": np.float32(0.5), "top_p": np.float64(0.25)}, {"temperature": 0.5, "top_p": 0.25}),
        ({"temperature": np.int64(0), "min_p": np.float16(0.5)}, {"temperature": 0, "min_p": 0.5}),
        ({"top_k": np.int32(7), "seed": np.uint64(2**64 - 1)}, {"top_k": 7, "seed": 2**64 - 1}),
        ({"ignore_eos": np.bool_(True), "logprobs": np.int8(3)}, {"ignore_eos": True, "logprobs": 3}),
        ({"stop_token_ids": np.array([1, 2])}, {"stop_token_ids": (1, 2)}),
        ({"logit_bias": {np.int64(4): np.float32(1.5)}}, {"logit_bias": {4: 1.5}}),
        ({"stop": np.str_("x")}, {"stop": "x"}),
    ],
)
def test_numpy_scalars_are_the_numbers_that_they_stand_for(given: dict[str, Any], meant: dict[str, Any]) -> None:
    params = SamplingParams(**given)
    assert params == SamplingParams(**meant)
    values = [*vars(params).values(), *params.stop_token_ids, *params.logit_bias, *params.logit_bias.values()]
    assert not any(isinstance(value, np.generic) for value in values)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", np.float32("nan")),
        ("temperature", np.bool_(True)),
        ("temperature", np.complex64(1)),
        ("top_k", np.float32(5)),
        ("top_k", np.int64(-1)),
        ("seed", np.bool_(False)),
        ("ignore_eos", np.int64(1)),
        ("max_tokens", np.array(3)),
        ("stop_token_ids", np.array([0.5])),
        ("logit_bias", {np.float32(1): 1.0}),
    ],
)
def test_numpy_scalars_are_validated_like_others(field: str, value: object) -> None:
    with pytest.raises(InvalidParameter, match=field):
        SamplingParams(**{field: value})  # type: ignore[arg-type]
