"""Packing of a step's sampling choices for the device."""

import numpy as np
import pytest

from llmc.runtime.artifact.manifest import MAX_LOGPROBS
from llmc.runtime.cuda.step.sampling import SAMPLE_ROW, Amounts, SamplingArrays, TooLittleRoom, pack, pack_logits_only
from llmc.runtime.step.row_sampling import SAMPLING_RECORD

HISTORIES = [np.arange(100 * i, 100 * i + n, dtype=np.int32) for i, n in enumerate((3, 5, 2))]
BIAS_IDS = np.array([7, 9], np.int32)
BIAS = np.array([0.5, -2.0], np.float32)


def rows():
    """Penalties in the first and the last row, biases in the middle one."""
    found = np.zeros(3, SAMPLING_RECORD)
    found["temperature"], found["repetition_penalty"], found["top_p"] = (0.5, 1.5, 2.5), 1.0, 0.9
    found["history"] = [history.ctypes.data for history in HISTORIES]
    found["history_len"], found["prompt_len"] = [len(history) for history in HISTORIES], 1
    found["seed"], found["sample_index"], found["position"] = 2**63 + 5, 2, 77
    found["top_k"], found["num_logprobs"] = 40, 3
    found["repetition_penalty"][0] = 1.5
    found["frequency_penalty"][2] = -0.25
    found["bias_ids"][1], found["bias"][1], found["num_bias"][1] = BIAS_IDS.ctypes.data, BIAS.ctypes.data, 2
    return found


def test_rows_hold_offsets_into_shared_arrays():
    arrays = SamplingArrays.allocate(Amounts(4, 8, 2))
    assert pack(rows(), arrays) == Amounts(3, 5, 2)
    assert arrays.history[:5].tolist() == [0, 1, 2, 200, 201]  # the middle row's history does not matter
    assert arrays.bias_ids.tolist() == [7, 9] and arrays.bias.tolist() == [0.5, -2.0]
    assert arrays.rows[["history", "history_len"]][:3].tolist() == [(0, 3), (3, 0), (3, 2)]
    assert arrays.rows[["bias", "num_bias"]][:3].tolist() == [(0, 0), (0, 2), (2, 0)]
    assert arrays.rows["wanted"].tolist() == [1, 1, 1, 0]


def test_every_other_field_is_copied():
    arrays = SamplingArrays.allocate(Amounts(3, 8, 2))
    given = rows()
    pack(given, arrays)
    own = {"history", "history_len", "bias", "num_bias", "wanted"}
    for name in set(SAMPLE_ROW.names) - own:
        assert arrays.rows[name].tolist() == given[name].tolist(), name
    assert set(SAMPLING_RECORD.names) - set(SAMPLE_ROW.names) == {"bias_ids"}


@pytest.mark.parametrize("capacity", [Amounts(2, 8, 2), Amounts(3, 4, 2), Amounts(3, 8, 1)])
def test_what_does_not_fit_is_refused_before_anything_is_written(capacity):
    arrays = SamplingArrays.allocate(capacity)
    arrays.history[:] = -5
    with pytest.raises(TooLittleRoom, match="history=5") as refused:
        pack(rows(), arrays)
    assert refused.value.needed == Amounts(3, 5, 2)
    assert (arrays.history == -5).all() and not any(arrays.rows.tobytes())


def test_too_many_alternatives_are_refused():
    given = rows()
    given["num_logprobs"][1] = MAX_LOGPROBS + 1
    with pytest.raises(ValueError, match=r"row 1: num_logprobs is 21, must be in 0\.\.20"):
        pack(given, SamplingArrays.allocate(Amounts(3, 8, 2)))


def test_logits_alone_ask_for_no_token():
    arrays = SamplingArrays.allocate(Amounts(3, 8, 2))
    pack(rows(), arrays)
    assert pack_logits_only(2, arrays) == Amounts(2, 0, 0)
    assert arrays.rows["wanted"].tolist() == [0, 0, 1]
    with pytest.raises(TooLittleRoom):
        pack_logits_only(4, arrays)
