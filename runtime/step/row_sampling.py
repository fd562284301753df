"""A request's sampling choices as the records of a step, built once and updated per step."""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.step.params import SamplingParams

# How one row's next token is chosen. Order: repetition, presence and frequency penalties over the history, bias, then
# temperature, top-k, top-p, min-p, then a race of the tokens that are left. The layout is C's, so that a device of this
# memory can read a step's records where they lie: it is that of LlmcSampling (templates/cpu/abi.h).
SAMPLING_FIELDS: tuple[tuple[str, type[np.generic]], ...] = (
    ("temperature", np.float32),  # 0: greedy
    ("top_p", np.float32),
    ("min_p", np.float32),
    ("repetition_penalty", np.float32),
    ("presence_penalty", np.float32),
    ("frequency_penalty", np.float32),
    ("top_k", np.int32),
    ("num_logprobs", np.int32),  # alternatives wanted beside the chosen token
    ("seed", np.uint64),
    ("sample_index", np.uint32),
    ("position", np.uint32),  # of the token being chosen
    ("history", np.uint64),  # address of int32[history_len]: the sequence so far, prompt first
    ("history_len", np.int32),
    ("prompt_len", np.int32),
    ("bias_ids", np.uint64),  # address of int32[num_bias]
    ("bias", np.uint64),  # address of float32[num_bias], added to those logits
    ("num_bias", np.int32),
)
SAMPLING_RECORD = np.dtype(list(SAMPLING_FIELDS), align=True)
# The same for one record in one call, which numpy would take several for: a step writes its rows one by one.
_PACKED = struct.Struct("@" + "".join(np.dtype(kind).char for _, kind in SAMPLING_FIELDS) + "0Q")
assert _PACKED.size == SAMPLING_RECORD.itemsize

# Added to the logits of tokens that must not be chosen yet. Finite, because the device reports non-finite
# logits, and far below any logit, so that every probability it leaves is zero.
FORBID = -1e30


@dataclass(frozen=True)
class BiasArrays:
    """Token ids and what is added to their logits, as arrays [n] whose memory the device reads."""

    ids: NDArray[np.int32]
    values: NDArray[np.float32]
    ids_address: int = field(init=False)
    values_address: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids_address", int(self.ids.ctypes.data))
        object.__setattr__(self, "values_address", int(self.values.ctypes.data))

    @classmethod
    def of(cls, bias: Mapping[int, float]) -> "BiasArrays":
        return cls(np.array(list(bias), dtype=np.int32), np.array(list(bias.values()), dtype=np.float32))


class RowSampling:
    """How one request's tokens are chosen."""

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        prompt_len: int,
        stop_ids: Iterable[int],
        sample_index: int = 0,
    ) -> None:
        self._min_tokens = params.min_tokens
        self._prompt_len = prompt_len
        self._bias = BiasArrays.of(params.logit_bias)
        self._early_bias = self._bias
        if params.min_tokens:
            self._early_bias = BiasArrays.of({**params.logit_bias, **dict.fromkeys(sorted(stop_ids), FORBID)})
        # Only a record whose bias changes with the length has to be written anew for each token.
        self.varies = self._early_bias is not self._bias
        self._fixed = (
            params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
            params.top_k,
            params.logprobs or 0,
            seed,
            sample_index,
        )

    def write(self, records: memoryview, row: int, history_address: int, history_len: int) -> None:
        """The choice of the token that follows `history_len` tokens, whose ids lie at `history_address`, as a record.

        `records` are the bytes of an array of SAMPLING_RECORD; what a record points to is read while its step runs.
        """
        prompt_len = self._prompt_len
        bias = self._early_bias if history_len - prompt_len < self._min_tokens else self._bias
        place = (history_len, history_address, history_len, prompt_len)
        biases = (bias.ids_address, bias.values_address, len(bias.ids))
        _PACKED.pack_into(records, row * _PACKED.size, *self._fixed, *place, *biases)
