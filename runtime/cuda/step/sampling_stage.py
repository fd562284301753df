"""The arrays of a step that say how its rows are sampled: sampling, history, bias_ids, bias."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.cuda.step.sampling import (
    SAMPLE_ROW,
    Amounts,
    SamplingArrays,
    pack,
    pack_logits_only,
)
from llmc.runtime.step.arrays import StepBuffers, StepLimits
from llmc.runtime.step.params import MAX_BIASES, MAX_STOP_IDS

_BYTES = 4


class SamplingStage:
    """Room for the largest step: every sequence may bring its whole history, a bias, and ids that it must not choose
    yet (the model's end tokens and its own)."""

    def __init__(self, limits: StepLimits, num_eos: int) -> None:
        biases = limits.max_seqs * (MAX_BIASES + MAX_STOP_IDS + num_eos)
        self.sizes: Mapping[str, int] = {
            "sampling": limits.max_rows * SAMPLE_ROW.itemsize,
            "history": limits.max_seqs * limits.max_seq_len * _BYTES,
            "bias_ids": biases * _BYTES,
            "bias": biases * _BYTES,
        }
        self._arrays: SamplingArrays | None = None

    def use(self, arrays: Mapping[str, NDArray[np.uint8]]) -> None:
        """Write to these arrays of `sizes` bytes from now on."""
        history, ids = arrays["history"].view(np.int32), arrays["bias_ids"].view(np.int32)
        rows = arrays["sampling"].view(SAMPLE_ROW)
        self._arrays = SamplingArrays(rows, history, ids, arrays["bias"].view(np.float32))

    def fill(self, step: StepBuffers) -> Mapping[str, int]:
        """Write a step's; returns the bytes used of each array. A step without sampling asks for logits only."""
        assert self._arrays is not None
        if step.samples:
            used = pack(step.sampling[: step.num_rows], self._arrays)
        else:
            used = pack_logits_only(step.num_rows, self._arrays)
        return sizes_of(used)


def sizes_of(used: Amounts) -> dict[str, int]:
    """Bytes of each array."""
    return {
        "sampling": used.rows * SAMPLE_ROW.itemsize,
        "history": used.history * _BYTES,
        "bias_ids": used.bias * _BYTES,
        "bias": used.bias * _BYTES,
    }
