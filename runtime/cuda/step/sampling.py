"""How a step's sampling choices get to the device: rows of templates/cuda/sample_row.cuh.

The device reads no memory of the host: histories and biases of all rows lie one after the other in arrays that are
copied to the device with the rows, and a row holds where its own begin. A row whose penalties are off brings no
history, so most steps copy nothing but the rows.
"""

import ctypes
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.artifact.manifest import MAX_LOGPROBS
from llmc.runtime.step.row_sampling import SAMPLING_FIELDS

# Up to its history a row is the step's record.
_SHARED = list(takewhile(lambda field: field[0] != "history", SAMPLING_FIELDS))
_SHARED_BYTES = np.dtype(_SHARED, align=True).itemsize
_OWN = [(name, np.int32) for name in ("history", "history_len", "prompt_len", "bias", "num_bias", "wanted")]
SAMPLE_ROW = np.dtype([*_SHARED, *_OWN], align=True)  # struct SampleRow, mirrored


@dataclass(frozen=True)
class Amounts:
    """How much of a step's arrays is in use: rows, ids of histories, entries of biases."""

    rows: int
    history: int
    bias: int


@dataclass(frozen=True)
class SamplingArrays:
    """Host memory that is copied to the device before a step: rows [max_rows] of SAMPLE_ROW, ids i32[...] of all
    histories, and ids and values of all biases, i32 and f32 [...]."""

    rows: NDArray[np.void]
    history: NDArray[np.int32]
    bias_ids: NDArray[np.int32]
    bias: NDArray[np.float32]

    @classmethod
    def allocate(cls, capacity: Amounts) -> "SamplingArrays":
        return cls(
            np.zeros(capacity.rows, SAMPLE_ROW),
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


def needed(given: NDArray[np.void]) -> Amounts:
    """What `pack` will use of the arrays."""
    return Amounts(len(given), int(_history_lens(given).sum()), int(given["num_bias"].sum()))


def pack(given: NDArray[np.void], arrays: SamplingArrays) -> Amounts:
    """Writes a step's records into `arrays`, in one pass; returns how much of them is to be copied.

    Raises TooLittleRoom, before anything is written, if they do not fit; ValueError for more alternatives than a row
    of output holds. Addresses in `given` are read during the call only.
    """
    count, lens, biases = len(given), _history_lens(given), given["num_bias"]
    history_ends, bias_ends = np.cumsum(lens), np.cumsum(biases)
    amounts = Amounts(count, int(history_ends[-1]) if count else 0, int(bias_ends[-1]) if count else 0)
    capacity = arrays.capacity
    if amounts.rows > capacity.rows or amounts.history > capacity.history or amounts.bias > capacity.bias:
        raise TooLittleRoom(amounts, capacity)
    logprobs = given["num_logprobs"]
    if count and not (logprobs.min() >= 0 and logprobs.max() <= MAX_LOGPROBS):
        number = int(np.flatnonzero((logprobs < 0) | (logprobs > MAX_LOGPROBS))[0])
        raise ValueError(f"row {number}: num_logprobs is {logprobs[number]}, must be in 0..{MAX_LOGPROBS}")
    rows = arrays.rows[:count]
    _bytes(rows)[:, :_SHARED_BYTES] = _bytes(given)[:, :_SHARED_BYTES]
    rows["history"], rows["history_len"], rows["prompt_len"] = history_ends - lens, lens, given["prompt_len"]
    rows["bias"], rows["num_bias"], rows["wanted"] = bias_ends - biases, biases, 1
    if amounts.history:
        for at in np.flatnonzero(lens):
            _copy(arrays.history, rows["history"][at], given["history"][at], lens[at])
    if amounts.bias:
        for at in np.flatnonzero(biases):
            _copy(arrays.bias_ids, rows["bias"][at], given["bias_ids"][at], biases[at])
            _copy(arrays.bias, rows["bias"][at], given["bias"][at], biases[at])
    return amounts


def _history_lens(rows: NDArray[np.void]) -> NDArray[np.int32]:
    """Ids of history of each row: none where its penalties are off."""
    penalised = (rows["repetition_penalty"] != 1) | (rows["presence_penalty"] != 0) | (rows["frequency_penalty"] != 0)
    return np.where(penalised, rows["history_len"], 0)


def _bytes(rows: NDArray[np.void]) -> NDArray[np.uint8]:
    return rows.view(np.uint8).reshape(len(rows), rows.itemsize)


def pack_logits_only(num_rows: int, arrays: SamplingArrays) -> Amounts:
    """A step that asks for the raw logits of its rows and for no token."""
    amounts = Amounts(num_rows, 0, 0)
    if num_rows > len(arrays.rows):
        raise TooLittleRoom(amounts, arrays.capacity)
    _bytes(arrays.rows)[:num_rows] = 0
    return amounts


def _copy(into: NDArray[np.int32] | NDArray[np.float32], begin: int, address: int, count: int) -> None:
    """`count` values of four bytes from an address of the host."""
    assert address
    ctypes.memmove(into.ctypes.data + 4 * int(begin), int(address), 4 * int(count))
