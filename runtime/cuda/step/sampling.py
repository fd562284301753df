"""templates/cuda/sample_row.cuh, mirrored for ctypes, and how a step's sampling choices get there.

The device reads no memory of the host: histories and biases of all rows lie one after the other in arrays that are
copied to the device with the rows, and a row holds where its own begin. A row whose penalties are off brings no
history, so most steps copy nothing but the rows.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.cpu.library import MAX_LOGPROBS, LlmcSampling


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


# Up to here the device's row is the host's, field by field.
_SAME_BYTES = SampleRow.history.offset
assert all(
    getattr(SampleRow, name).offset == getattr(LlmcSampling, name).offset
    for name, _ in SampleRow._fields_
    if getattr(SampleRow, name).offset < _SAME_BYTES
)
_FORMATS = {c_float: "f4", c_int32: "i4", c_uint32: "u4", c_uint64: "u8", c_void_p: "u8"}


def _table(structure: type[ctypes.Structure]) -> np.dtype[np.void]:
    """A row of an array of these structures, for numpy."""
    names = [name for name, *_ in structure._fields_]
    return np.dtype(
        {
            "names": names,
            "formats": [_FORMATS[kind] for _, kind, *_ in structure._fields_],
            "offsets": [getattr(structure, name).offset for name in names],
            "itemsize": ctypes.sizeof(structure),
        }
    )


_HOST, _ROW = _table(LlmcSampling), _table(SampleRow)


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
    rows = _rows_of(sampling)
    return Amounts(len(rows), int(_history_lens(rows).sum()), int(rows["num_bias"].sum()))


def pack(sampling: Sequence[LlmcSampling], arrays: SamplingArrays) -> Amounts:
    """Writes a step's choices into `arrays`; returns how much of them is to be copied.

    Raises TooLittleRoom, before anything is written, if they do not fit; ValueError for more alternatives than a row
    of output holds. Addresses in `sampling` are read during the call only.
    """
    return pack_rows(_rows_of(sampling), arrays)


def pack_rows(given: NDArray[np.void], arrays: SamplingArrays) -> Amounts:
    """`pack` of rows as `host_rows` gives them: one pass, whatever their number."""
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
    rows = np.frombuffer(memoryview(arrays.rows).cast("B"), _ROW, count)
    _bytes(rows)[:, :_SAME_BYTES] = _bytes(given)[:, :_SAME_BYTES]
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


def host_rows(sampling: "ctypes.Array[LlmcSampling]") -> NDArray[np.void]:
    """The same memory, row by row, for numpy."""
    return np.frombuffer(memoryview(sampling).cast("B"), _HOST)


def _rows_of(sampling: Sequence[LlmcSampling]) -> NDArray[np.void]:
    return host_rows((LlmcSampling * len(sampling))(*sampling))


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
    ctypes.memset(ctypes.addressof(arrays.rows), 0, num_rows * ctypes.sizeof(SampleRow))
    return amounts


def _copy(into: NDArray[np.int32] | NDArray[np.float32], begin: int, address: int, count: int) -> None:
    """`count` values of four bytes from an address of the host."""
    assert address
    ctypes.memmove(into.ctypes.data + 4 * int(begin), int(address), 4 * int(count))
