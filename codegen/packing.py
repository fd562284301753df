"""Layout of linear weights, and sizes of the operand rows of CPU kernels: the definition in Python of what
templates/cpu/operand.h reads. A test packs here and reads there.

A weight is [n, k] (output channel, input). For CUDA kernels it lies row by row (Rows16). For CPU kernels it lies in
panels of 32 channels, k contiguous inside a panel:
    F32   f32 [n/32][k][32]          Bf16  bf16 [n/32][k/2][32][2]          Int8  u8 = w + 128  [n/32][k/4][32][4]
n is padded to 32 and k to `pad_k(k)`, both with zero weights. Panels are independent, so a weight can be packed some
rows at a time, 32 rows or a multiple of it, and the pieces joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PANEL = 32  # output channels of a panel, for CPU kernels
HALF = 16  # gate or up channels in a gated panel
LINE = 64  # bytes

Bytes = npt.NDArray[np.uint8]


def round_up(n: int, to: int) -> int:
    return -(-n // to) * to


def _odd_lines(size: int) -> int:
    """Bytes rounded up to an odd number of cache lines, so that rows do not collide in L1 sets."""
    return (-(-size // LINE) | 1) * LINE


@dataclass(frozen=True)
class F32:
    """f32 weights, f32 operand rows without padding."""

    dtype = np.dtype(np.float32)
    panel = PANEL
    per_lane = 1  # neighbouring k of one channel stored together

    @property
    def cpp(self) -> str:
        return "F32"

    def pad_k(self, k: int) -> int:
        return k

    def row_bytes(self, k: int) -> int:
        return 4 * k


@dataclass(frozen=True)
class Bf16:
    """bf16 weights (as uint16) and operand rows."""

    dtype = np.dtype(np.uint16)
    panel = PANEL
    per_lane = 2

    @property
    def cpp(self) -> str:
        return "Bf16"

    def pad_k(self, k: int) -> int:
        return round_up(k, 32)

    def row_bytes(self, k: int) -> int:
        return _odd_lines(2 * self.pad_k(k))


@dataclass(frozen=True)
class Int8:
    """int8 weights with one scale per channel; operand rows of s8 with one scale per `group` columns (0: per row)."""

    group: int = 0
    dtype = np.dtype(np.uint8)
    panel = PANEL
    per_lane = 4

    def __post_init__(self) -> None:
        if self.group not in (0, 32) and (self.group < 0 or self.group % 64):
            raise ValueError(f"activation group {self.group}: expected 0 (whole row), 32, or a multiple of 64")

    @property
    def cpp(self) -> str:
        return f"Int8<{self.group}>"

    def pad_k(self, k: int) -> int:
        return round_up(k, max(self.group, 64))

    def groups(self, k: int) -> int:
        return self.pad_k(k) // self.group if self.group else 1

    def row_bytes(self, k: int) -> int:
        return _odd_lines(self.pad_k(k) + 8 * self.groups(k))


@dataclass(frozen=True)
class Rows16:
    """bf16 or f16 weights (as uint16), rows padded to 16 bytes: what cp.async and TMA read."""

    dtype = np.dtype(np.uint16)
    panel = 1
    per_lane = 1

    def pad_k(self, k: int) -> int:
        return round_up(k, 8)


Format = F32 | Bf16 | Int8  # of operand rows
WeightFormat = Format | Rows16


def panel_bytes(fmt: WeightFormat, k: int) -> int:
    return fmt.pad_k(k) * fmt.panel * fmt.dtype.itemsize


def weight_bytes(fmt: WeightFormat, n: int, k: int) -> int:
    """Bytes of the packed weight; the scales of Int8 (f32 [n padded to 32]) come beside."""
    return round_up(n, fmt.panel) // fmt.panel * panel_bytes(fmt, k)


def round_bf16(x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """f32 to bf16 bits, nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def widen_bf16(x: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)


def quantize_channels(w: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """w [n, k] -> (int8 [n, k], f32 scales [n]); symmetric, max|w| of a channel becomes 127."""
    scales = (np.max(np.abs(w), axis=1) / np.float32(127)).astype(np.float32)
    divisor = np.where(scales > 0, scales, np.float32(1))[:, None]
    return np.clip(np.rint(w / divisor), -127, 127).astype(np.int8), scales


def pack(fmt: WeightFormat, weight: npt.NDArray[np.float32 | np.uint16 | np.int8]) -> Bytes:
    """Packs rows [n, k] of a weight: f32 for F32, bits (uint16) for Bf16 and Rows16, int8 for Int8. Returns uint8."""
    n, k = weight.shape
    expected = np.dtype(np.int8) if isinstance(fmt, Int8) else fmt.dtype
    if weight.dtype != expected:
        raise TypeError(f"{type(fmt).__name__} packs {expected}, got {weight.dtype}")
    rows, columns = round_up(n, fmt.panel), fmt.pad_k(k)
    padded = np.zeros((rows, columns), expected)
    padded[:n, :k] = weight
    values = (padded.view(np.uint8) ^ np.uint8(128)) if isinstance(fmt, Int8) else padded
    panels = values.reshape(rows // fmt.panel, fmt.panel, columns // fmt.per_lane, fmt.per_lane)
    return np.ascontiguousarray(panels.transpose(0, 2, 1, 3)).view(np.uint8).reshape(-1)


def unpack(fmt: WeightFormat, data: Bytes, n: int, k: int) -> npt.NDArray[np.float32 | np.uint16 | np.int8]:
    """The inverse of pack: [n, k] in the dtype that pack takes."""
    if data.size != weight_bytes(fmt, n, k):
        want = weight_bytes(fmt, n, k)
        raise ValueError(f"packed weight [{n}, {k}] as {type(fmt).__name__}: expected {want} bytes, got {data.size}")
    panels = data.view(fmt.dtype).reshape(-1, fmt.pad_k(k) // fmt.per_lane, fmt.panel, fmt.per_lane)
    rows = panels.transpose(0, 2, 1, 3).reshape(-1, fmt.pad_k(k))[:n, :k]
    if isinstance(fmt, Int8):
        return (rows ^ np.uint8(128)).view(np.int8)
    return rows


def pack_stream(
    fmt: WeightFormat,
    n: int,
    k: int,
    read_rows: Callable[[int, int], npt.NDArray[np.float32 | np.uint16 | np.int8]],
    max_bytes: int = 16 << 20,
) -> Iterator[Bytes]:
    """Packs a weight whose rows [begin, end) `read_rows` gives, in pieces of about max_bytes.

    The pieces join to what pack returns.
    """
    step = round_up(max(1, max_bytes // panel_bytes(fmt, k)) * fmt.panel, PANEL)  # runs of gated weights stay whole
    for begin in range(0, n, step):
        yield pack(fmt, read_rows(begin, min(n, begin + step)))


def gated_channels(width: int) -> int:
    """Channels of a gated weight whose gate and up parts have `width` each: both padded to 16."""
    return 2 * round_up(width, HALF)


def gated_order(width: int) -> npt.NDArray[np.int64]:
    """Row order of a gated weight over concat(gate, up) of 2 * width rows: 16 gate rows, their 16 up rows, and so on.

    -1 stands for a zero row. With it every panel holds the gate and the up part of the same 16 outputs.
    """
    outputs = np.arange(round_up(width, HALF), dtype=np.int64)
    gate = np.where(outputs < width, outputs, -1)
    up = np.where(outputs < width, outputs + width, -1)
    return np.stack([gate.reshape(-1, HALF), up.reshape(-1, HALF)], axis=1).reshape(-1)
