"""A request's sampling choices in the form the device reads, built once and updated per step."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.cpu.library import LlmcSampling
from llmc.runtime.step.params import SamplingParams

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
    """The device's view of one request's sampling.

    The struct of `at` is valid until the next call of `at`.
    """

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
        self._struct = LlmcSampling(
            temperature=params.temperature,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            top_k=params.top_k,
            num_logprobs=params.logprobs or 0,
            seed=seed,
            sample_index=sample_index,
            prompt_len=prompt_len,
        )

    def at(self, history_address: int, history_len: int) -> LlmcSampling:
        """The choice of the token that follows `history_len` tokens, whose ids lie at `history_address`."""
        struct = self._struct
        early = history_len - self._prompt_len < self._min_tokens
        bias = self._early_bias if early else self._bias
        struct.history = history_address
        struct.history_len = history_len
        struct.position = history_len
        struct.bias_ids = bias.ids_address
        struct.bias = bias.values_address
        struct.num_bias = len(bias.ids)
        return struct
