"""Packing of a step's sampling choices for the device."""

import ctypes

import numpy as np
import pytest

from llmc.runtime.cpu.library import MAX_LOGPROBS, LlmcSampling
from llmc.runtime.cuda.step.sampling import Amounts, SampleRow, SamplingArrays, TooLittleRoom, pack, pack_logits_only

HISTORIES = [np.arange(100 * i, 100 * i + n, dtype=np.int32) for i, n in enumerate((3, 5, 2))]
BIAS_IDS = np.array([7, 9], np.int32)
BIAS = np.array([0.5, -2.0], np.float32)


def rows():
    """Penalties in the first and the last row, biases in the middle one."""
    found = [LlmcSampling(temperature=0.5 + i, repetition_penalty=1.0, top_p=0.9) for i in range(3)]
    for s, history in zip(found, HISTORIES, strict=True):
        s.history, s.history_len, s.prompt_len = history.ctypes.data, len(history), 1
        s.seed, s.sample_index, s.position, s.top_k, s.num_logprobs = 2**63 + 5, 2, 77, 40, 3
    found[0].repetition_penalty = 1.5
    found[2].frequency_penalty = -0.25
    found[1].bias_ids, found[1].bias, found[1].num_bias = BIAS_IDS.ctypes.data, BIAS.ctypes.data, 2
    return found


def test_rows_hold_offsets_into_shared_arrays():
    arrays = SamplingArrays.allocate(Amounts(4, 8, 2))
    assert pack(rows(), arrays) == Amounts(3, 5, 2)
    assert arrays.history[:5].tolist() == [0, 1, 2, 200, 201]  # the middle row's history does not matter
    assert arrays.bias_ids.tolist() == [7, 9] and arrays.bias.tolist() == [0.5, -2.0]
    assert [(r.history, r.history_len) for r in arrays.rows[:3]] == [(0, 3), (3, 0), (3, 2)]
    assert [(r.bias, r.num_bias) for r in arrays.rows[:3]] == [(0, 0), (0, 2), (2, 0)]
    assert [r.wanted for r in arrays.rows] == [1, 1, 1, 0]


def test_every_other_field_is_copied():
    arrays = SamplingArrays.allocate(Amounts(3, 8, 2))
    given = rows()
    pack(given, arrays)
    own = {"history", "history_len", "bias", "num_bias", "wanted"}
    for s, row in zip(given, arrays.rows, strict=True):
        for name in {name for name, _ in SampleRow._fields_} - own:
            assert getattr(row, name) == getattr(s, name), name
    assert {name for name, _ in LlmcSampling._fields_} - {name for name, _ in SampleRow._fields_} == {
        "bias_ids",
        "padding",
    }


@pytest.mark.parametrize("capacity", [Amounts(2, 8, 2), Amounts(3, 4, 2), Amounts(3, 8, 1)])
def test_what_does_not_fit_is_refused_before_anything_is_written(capacity):
    arrays = SamplingArrays.allocate(capacity)
    arrays.history[:] = -5
    with pytest.raises(TooLittleRoom, match="history=5") as refused:
        pack(rows(), arrays)
    assert refused.value.needed == Amounts(3, 5, 2)
    assert (arrays.history == -5).all() and not any(bytes(memoryview(arrays.rows).cast("B")))


def test_too_many_alternatives_are_refused():
    given = rows()
    given[1].num_logprobs = MAX_LOGPROBS + 1
    with pytest.raises(ValueError, match=r"row 1: num_logprobs is 21, must be in 0\.\.20"):
        pack(given, SamplingArrays.allocate(Amounts(3, 8, 2)))


def test_logits_alone_ask_for_no_token():
    arrays = SamplingArrays.allocate(Amounts(3, 8, 2))
    pack(rows(), arrays)
    assert pack_logits_only(2, arrays) == Amounts(2, 0, 0)
    assert [r.wanted for r in arrays.rows] == [0, 0, 1]
    with pytest.raises(TooLittleRoom):
        pack_logits_only(4, arrays)


def test_rows_lie_as_an_array():
    assert ctypes.sizeof(SampleRow) % ctypes.alignment(SampleRow) == 0
