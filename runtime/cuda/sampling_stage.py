"""How rows are sampled, among the arrays that a step sends to the device."""

import ctypes
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.cuda.sampling import Amounts, SampleRow, SamplingArrays, pack, pack_logits_only
from llmc.runtime.prepare import StepBuffers, StepLimits
from llmc.runtime.sampling import MAX_BIASES


class StepSampling:
    """Arrays sampling (SampleRow [R]), history (i32: of all rows that penalise, one after the other), bias_ids and
    bias."""

    def sizes(self, limits: StepLimits) -> Mapping[str, int]:
        """Bytes of each array for the largest step."""
        rows = limits.max_rows
        bias = 4 * rows * MAX_BIASES
        history = 4 * rows * (limits.max_seq_len + 1)
        return {"sampling": rows * ctypes.sizeof(SampleRow), "history": history, "bias_ids": bias, "bias": bias}

    def fill(self, step: StepBuffers, arrays: Mapping[str, NDArray[np.uint8]]) -> Mapping[str, int]:
        """Write a step's; returns the bytes used of each. Rows of a step without sampling are marked unwanted."""
        staged = SamplingArrays(
            (SampleRow * (arrays["sampling"].nbytes // ctypes.sizeof(SampleRow))).from_buffer(arrays["sampling"].data),
            arrays["history"].view(np.int32),
            arrays["bias_ids"].view(np.int32),
            arrays["bias"].view(np.float32),
        )
        if step.struct.sampling:
            used = pack(step.sampling[: step.num_rows], staged)
        else:
            used = pack_logits_only(step.num_rows, staged)
        return _bytes(used)


def _bytes(used: Amounts) -> dict[str, int]:
    return {
        "sampling": used.rows * ctypes.sizeof(SampleRow),
        "history": 4 * used.history,
        "bias_ids": 4 * used.bias,
        "bias": 4 * used.bias,
    }
