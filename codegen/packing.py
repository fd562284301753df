"""How linears' weights lie in memory, and the operand rows of CPU kernels: the definition in Python of what
templates/cpu/operand.h reads. A test packs here and reads there. All of it follows from the number format.

A weight is [n, k] (output channel, input). For CUDA kernels it lies row by row. For CPU kernels it lies in panels of 32
channels, k contiguous inside a panel, as many k of one channel together as 4 bytes hold:
    f32 [n/32][k][32]       bf16 [n/32][k/2][32][2]       int8, u8 = w + 128 [n/32][k/4][32][4]
    4 bits [n/32][k/8][32][4]: byte j holds k = j in its low half and k = 4 + j in its high one; int4 as w + 8
    fp8 [n/32][k/2][32][2]
n is padded to 32 and k to `pad_k(k)`, both with zero codes. Scales and offsets of groups lie beside,
[n/32][groups][32], as many groups as padded columns have. Panels are independent, so a weight can be packed some rows
at a time, 32 rows or a multiple of it, and the pieces joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from llmc.ir.formats import Numbers, Packed, ScalePanels, Scheme, WeightLayout
from llmc.ir.graph import IRError
from llmc.ir.types import DType, TensorType

PANEL = 32  # output channels of a panel, for CPU kernels
LINE = 64  # bytes
LANE_BYTES = 4  # neighbouring k of one channel stored together in a panel
ROW_BYTES = 16  # that rows for CUDA kernels are padded to: what cp.async and TMA read

Bytes = npt.NDArray[np.uint8]
Bits = npt.NDArray[np.float32 | np.uint16 | np.int8 | np.uint8]
"""Values as they are packed: float32, the bits of a half format, codes, one to a byte."""
_BITS: dict[DType, npt.DTypeLike] = {
    DType.F32: np.float32,
    DType.BF16: np.uint16,
    DType.F16: np.uint16,
    DType.I8: np.int8,
    DType.I4: np.int8,
    DType.U4: np.uint8,
    DType.F4_E2M1: np.uint8,
    DType.NL4: np.uint8,
    DType.F8_E4M3: np.uint8,
}
_PER_LANE = {DType.F8_E4M3: 2}  # columns of a channel that lie together, where they do not fill the lane
_RAISED = {DType.I8: np.uint8(0x80), DType.I4: np.uint8(8)}  # xored with bytes, or added to halves: no code is negative


def round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def _odd_lines(size: int) -> int:
    """Bytes rounded up to an odd number of cache lines, so that rows do not collide in L1 sets."""
    return (-(-size // LINE) | 1) * LINE


@dataclass(frozen=True)
class OperandRows:
    """Rows of k numbers as CPU kernels read them: the numbers, then for those with scales a float32 scale and an int32
    sum for each group. Float32 rows are an operand as they stand, without padding."""

    numbers: Numbers

    def pad_k(self, k: int) -> int:
        if self.numbers.element is DType.F32:
            return k
        return round_up(k, max(LINE // self.numbers.element.num_bytes, self.numbers.group or 0))

    def num_scales(self, k: int) -> int:
        return self.numbers.num_scales(self.pad_k(k))

    def row_bytes(self, k: int) -> int:
        if self.numbers.element is DType.F32:
            return 4 * k
        return _odd_lines(self.pad_k(k) * self.numbers.element.num_bytes + 8 * self.num_scales(k))


@dataclass(frozen=True)
class Packing:
    """The data of a weight in memory: [n / panel][k / per_lane][panel][per_lane], padded with zero weights."""

    scheme: Scheme
    order: WeightLayout

    def __post_init__(self) -> None:
        if self.order is WeightLayout.ROWS and self.scheme.weight.element.num_bits < 8:
            raise IRError(f"no kernels read {self.scheme} in rows")

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Of the values that are packed."""
        return np.dtype(_BITS[self.scheme.weight.element])

    @property
    def panel(self) -> int:
        return PANEL if self.order is WeightLayout.PANELS else 1

    @property
    def per_lane(self) -> int:
        element = self.scheme.weight.element
        if self.order is not WeightLayout.PANELS:
            return 1
        return _PER_LANE.get(element, 8 * LANE_BYTES // element.num_bits)

    def pad_k(self, k: int) -> int:
        """As far as the operand's rows reach, or to whole vectors of a row."""
        if self.order is WeightLayout.PANELS:
            return OperandRows(self.scheme.operand).pad_k(k)
        return round_up(k, ROW_BYTES // self.dtype.itemsize)

    def panel_bytes(self, k: int) -> int:
        return self.pad_k(k) * self.panel * self.scheme.weight.element.num_bits // 8

    def num_bytes(self, n: int, k: int) -> int:
        """Of the packed data; scales (float32 [n], read by whole panels) come beside."""
        return round_up(n, self.panel) // self.panel * self.panel_bytes(k)

    def pack(self, weight: Bits) -> Bytes:
        """Packs rows [n, k] of a weight."""
        n, k = weight.shape
        if weight.dtype != self.dtype:
            raise TypeError(f"{self.scheme} packs {self.dtype}, got {weight.dtype}")
        rows, columns = round_up(n, self.panel), self.pad_k(k)
        padded = np.zeros((rows, columns), self.dtype)
        padded[:n, :k] = weight
        lanes = self._lanes(padded)
        panels = lanes.reshape(rows // self.panel, self.panel, columns // self.per_lane, -1)
        return np.ascontiguousarray(panels.transpose(0, 2, 1, 3)).view(np.uint8).reshape(-1)

    def unpack(self, data: Bytes, n: int, k: int) -> Bits:
        """The inverse of pack: [n, k]."""
        want = self.num_bytes(n, k)
        if data.size != want:
            raise ValueError(f"packed weight [{n}, {k}] in {self.scheme}: expected {want} bytes, got {data.size}")
        lanes = self.pad_k(k) // self.per_lane
        panels = data.reshape(-1, lanes, self.panel, self._lane_bytes)
        rows = np.ascontiguousarray(panels.transpose(0, 2, 1, 3)).reshape(-1, lanes, self._lane_bytes)
        return self._codes(rows).reshape(len(rows), -1)[:n, :k]

    @property
    def _lane_bytes(self) -> int:
        return self.per_lane * self.scheme.weight.element.num_bits // 8

    def _lanes(self, values: Bits) -> Bytes:
        """Rows of values as the bytes of lanes, [..., lane bytes]."""
        element = self.scheme.weight.element
        if self.order is WeightLayout.PANELS and element is DType.I8:
            return values.view(np.uint8) ^ _RAISED[element]
        if element.num_bits != 4:
            return values.view(np.uint8)
        codes = (values.view(np.uint8) + _RAISED.get(element, np.uint8(0))) & np.uint8(15)
        low, high = np.moveaxis(codes.reshape(len(codes), -1, 2, LANE_BYTES), 2, 0)
        return np.asarray(low | high << np.uint8(4))

    def _codes(self, lanes: Bytes) -> Bits:
        """The inverse of _lanes, for lanes [rows, lanes, bytes]."""
        element = self.scheme.weight.element
        if self.order is WeightLayout.PANELS and element is DType.I8:
            lanes = lanes ^ _RAISED[element]
        elif element.num_bits == 4:
            codes = np.stack([lanes & np.uint8(15), lanes >> np.uint8(4)], 2)
            lanes = codes - _RAISED.get(element, np.uint8(0))
        values: Bits = np.ascontiguousarray(lanes).view(self.dtype)
        return values

    def pack_stream(
        self, n: int, k: int, read_rows: Callable[[int, int], Bits], max_bytes: int = 16 << 20
    ) -> Iterator[Bytes]:
        """Packs a weight whose rows [begin, end) `read_rows` gives, in pieces of about max_bytes.

        The pieces join to what pack returns.
        """
        panels = max(1, max_bytes // self.panel_bytes(k))
        step = round_up(panels * self.panel, PANEL)  # runs of gated weights stay whole
        for begin in range(0, n, step):
            yield self.pack(read_rows(begin, min(n, begin + step)))


@dataclass(frozen=True)
class ScalePacking:
    """The scales or offsets [n, groups] of a weight in memory: [n / 32][groups][32], padded with zeros."""

    scheme: Scheme
    dtype: DType

    def groups(self, num_groups: int) -> int:
        """As many as padded columns have."""
        group = self.scheme.weight.group or 1
        return -(-OperandRows(self.scheme.operand).pad_k(num_groups * group) // group)

    def num_bytes(self, n: int, num_groups: int) -> int:
        return round_up(n, PANEL) * self.groups(num_groups) * self.dtype.num_bytes

    def pack(self, scales: Bits) -> Bytes:
        """Rows [n, groups]."""
        n, num_groups = scales.shape
        padded = np.zeros((round_up(n, PANEL), self.groups(num_groups)), scales.dtype)
        padded[:n, :num_groups] = scales
        panels = padded.reshape(-1, PANEL, padded.shape[1])
        return np.ascontiguousarray(panels.transpose(0, 2, 1)).view(np.uint8).reshape(-1)

    def unpack(self, data: Bytes, n: int, num_groups: int) -> Bits:
        """The inverse of pack: [n, groups]."""
        panels = data.view(_BITS[self.dtype]).reshape(-1, self.groups(num_groups), PANEL)
        rows: Bits = panels.transpose(0, 2, 1).reshape(-1, panels.shape[1])[:n, :num_groups]
        return rows


def stored_bytes(type_: TensorType) -> int:
    """Bytes of a weight, packed or as it stands."""
    if isinstance(type_.layout, ScalePanels):
        return ScalePacking(type_.layout.scheme, type_.dtype).num_bytes(*type_.static_shape())
    if isinstance(type_.layout, Packed):
        n, k = type_.static_shape()
        return Packing(type_.layout.scheme, type_.layout.order).num_bytes(n, k)
    return prod(type_.static_shape()) * type_.dtype.num_bytes


def bits(values: npt.NDArray[np.generic], dtype: DType) -> Bits:
    """Values as they are packed or stored, rounded to nearest even. IRError for those that the dtype cannot hold."""
    if dtype not in _BITS:
        raise IRError(f"no weight is stored as {dtype.value}")
    if dtype is DType.BF16:
        return round_bf16(np.asarray(values, np.float32))
    if dtype is DType.F16:
        # rounded already, by the expression's cast: what did not fit is infinite now
        if np.isinf(values).any():
            raise IRError("a value beyond float16's 65504: build in bf16")
        return np.asarray(values, np.float16).view(np.uint16)
    return np.asarray(values, _BITS[dtype])


def round_bf16(x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """f32 to bf16 bits, nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def widen_bf16(x: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
