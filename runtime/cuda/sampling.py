"""templates/cuda/sample_row.cuh, mirrored for ctypes, and how a step's sampling choices get there.

The device reads no memory of the host: histories and biases of all rows lie one after the other in arrays that are
copied to the device with the rows, and a row holds where its own begin. A row whose penalties are off brings no
history, so most steps copy nothing but the rows.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_uint32, c_uint64
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.abi import MAX_LOGPROBS, LlmcSampling


class SampleRow(ctypes.Structure):
    """How one row's next token is chosen; see sample_row.cuh."""

    _fields_ = (
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repetition_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("top_k", c_int32),
        ("num_logprobs", c_int32),
        ("seed", c_uint64),
        ("sample_index", c_uint32),
        ("position", c_uint32),
        ("history", c_int32),
        ("history_len", c_int32),
        ("prompt_len", c_int32),
        ("bias", c_int32),
        ("num_bias", c_int32),
        ("wanted", c_int32),
    )


_SAME = tuple(
    name
    for name, _ in SampleRow._fields_
    if name not in ("history", "history_len", "prompt_len", "bias", "num_bias", "wanted")
)


@dataclass(frozen=True)
class Amounts:
    """How much of a step's arrays is in use: rows, ids of histories, entries of biases."""

    rows: int
    history: int
    bias: int


@dataclass(frozen=True)
class SamplingArrays:
    """Host memory that is copied to the device before a step: rows [max_rows] of SampleRow, ids i32[...] of all
    histories, and ids and values of all biases, i32 and f32 [...]."""

    rows: "ctypes.Array[SampleRow]"
    history: NDArray[np.int32]
    bias_ids: NDArray[np.int32]
    bias: NDArray[np.float32]

    @classmethod
    def allocate(cls, capacity: Amounts) -> "SamplingArrays":
        return cls(
            (SampleRow * capacity.rows)(),
            np.empty(capacity.history, np.int32),
            np.empty(capacity.bias, np.int32),
            np.empty(capacity.bias, np.float32),
        )

    @property
    def capacity(self) -> Amounts:
        return Amounts(len(self.rows), len(self.history), min(len(self.bias_ids), len(self.bias)))


class TooLittleRoom(ValueError):
    """A step needs larger arrays; `needed` says how large."""

    def __init__(self, needed: Amounts, capacity: Amounts) -> None:
        super().__init__(f"the step's sampling needs {needed}, its arrays hold {capacity}: allocate larger ones")
        self.needed = needed


def needed(sampling: Sequence[LlmcSampling]) -> Amounts:
    """What `pack` will use of the arrays."""
    return Amounts(
        len(sampling), sum(s.history_len for s in sampling if is_penalised(s)), sum(s.num_bias for s in sampling)
    )


def is_penalised(s: LlmcSampling) -> bool:
    """Whether the row's history matters."""
    neutral = s.repetition_penalty == 1.0 and s.presence_penalty == 0.0 and s.frequency_penalty == 0.0
    return not neutral and s.history_len > 0


def pack(sampling: Sequence[LlmcSampling], arrays: SamplingArrays) -> Amounts:
    """Writes a step's choices into `arrays`; returns how much of them is to be copied.

    Raises TooLittleRoom, before anything is written, if they do not fit; ValueError for more alternatives than a row
    of output holds. Addresses in `sampling` are read during the call only.
    """
    amounts = needed(sampling)
    capacity = arrays.capacity
    if amounts.rows > capacity.rows or amounts.history > capacity.history or amounts.bias > capacity.bias:
        raise TooLittleRoom(amounts, capacity)
    history = bias = 0
    for number, s in enumerate(sampling):
        if not 0 <= s.num_logprobs <= MAX_LOGPROBS:
            raise ValueError(f"row {number}: num_logprobs is {s.num_logprobs}, must be in 0..{MAX_LOGPROBS}")
        row = arrays.rows[number]
        for name in _SAME:
            setattr(row, name, getattr(s, name))
        row.history, row.history_len, row.prompt_len = history, s.history_len if is_penalised(s) else 0, s.prompt_len
        row.bias, row.num_bias = bias, s.num_bias
        row.wanted = 1
        _copy(arrays.history, history, s.history, row.history_len)
        _copy(arrays.bias_ids, bias, s.bias_ids, s.num_bias)
        _copy(arrays.bias, bias, s.bias, s.num_bias)
        history += row.history_len
        bias += s.num_bias
    return amounts


def pack_logits_only(num_rows: int, arrays: SamplingArrays) -> Amounts:
    """A step that asks for the raw logits of its rows and for no token."""
    amounts = Amounts(num_rows, 0, 0)
    if num_rows > len(arrays.rows):
        raise TooLittleRoom(amounts, arrays.capacity)
    ctypes.memset(ctypes.addressof(arrays.rows), 0, num_rows * ctypes.sizeof(SampleRow))
    return amounts


def _copy(into: NDArray[np.int32] | NDArray[np.float32], begin: int, address: int | None, count: int) -> None:
    """`count` values of four bytes from an address of the host."""
    if count:
        assert address is not None
        ctypes.memmove(into.ctypes.data + 4 * begin, address, 4 * count)
