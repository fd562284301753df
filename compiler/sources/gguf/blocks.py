"""ggml's blocks taken apart into codes, scales and offsets, so that weights stay the numbers that the file holds.

Each layout is the struct of its name in ggml-common.h. Codes, scales and offsets stand for the values of
ggml's dequantisation to the bit: scales of K-quants are products of a half float and a small integer, which float32
holds exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from llmc.ir.codes import VALUES
from llmc.ir.formats import Numbers, Part
from llmc.ir.types import DType

Blocks = NDArray[Any]  # structs [N, blocks], or one field of them
Codes = NDArray[np.int8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class BlockFormat:
    """How a type of ggml's holds numbers: the struct of a block, and its parts in order of columns."""

    numbers: Numbers
    struct: np.dtype[Any]
    codes: Callable[[Blocks], NDArray[Any]]
    scales: Callable[[Blocks], Floats]
    offsets: Callable[[Blocks], Floats] | None = None

    def part(self, rows: NDArray[np.uint8], part: Part) -> NDArray[Any]:
        """Of rows [N, bytes] as the file holds them: codes [N, K], scales or offsets [N, groups]."""
        blocks = np.ascontiguousarray(rows).view(self.struct)
        if part is Part.DATA:
            return self.codes(blocks).reshape(len(rows), -1).astype(np.int8, copy=False)
        made = self.scales if part is Part.SCALE else self.offsets
        assert made is not None
        return made(blocks).reshape(len(rows), -1)


def _nibbles(packed: Blocks) -> Codes:
    """Of bytes [..., n]: n low halves, then n high ones."""
    return np.concatenate([packed & 15, packed >> 4], -1).astype(np.int8)


def _bits(packed: Blocks, shifts: range, mask: int = 1) -> Codes:
    """[..., shifts, n] of bytes [..., n]: what each shift leaves of every byte."""
    steps = np.array(shifts, np.uint8)[:, None]
    return ((packed[..., None, :] >> steps) & mask).astype(np.int8)


def _d(blocks: Blocks) -> Floats:
    """A scale in half floats."""
    return np.asarray(blocks["d"], np.float32)


def _m(blocks: Blocks) -> Floats:
    """A minimum in half floats."""
    return np.asarray(blocks["m"], np.float32)


def _q8(blocks: Blocks) -> Codes:
    codes: Codes = blocks["qs"]
    return codes


def _q4(blocks: Blocks) -> Codes:
    return _nibbles(blocks["qs"])


def _q4_0(blocks: Blocks) -> Codes:
    return _q4(blocks) - np.int8(8)


def _q5_1(blocks: Blocks) -> Codes:
    high = np.unpackbits(blocks["qh"], axis=-1, bitorder="little").astype(np.int8)
    return _q4(blocks) | (high << 4)


def _q5_0(blocks: Blocks) -> Codes:
    return _q5_1(blocks) - np.int8(16)


def _q4_k(blocks: Blocks) -> Codes:
    """Two groups of 32 to 32 bytes: the first in the low halves."""
    return _nibbles(blocks["qs"].reshape(*blocks.shape, -1, 32))


def _q5_k(blocks: Blocks) -> Codes:
    """Bit i of the high bits is of group i."""
    low = _q4_k(blocks).reshape(*blocks.shape, 8, 32)
    return low | (_bits(blocks["qh"], range(8)) << 4)


def _q6_k(blocks: Blocks) -> Codes:
    low = _nibbles(blocks["ql"].reshape(*blocks.shape, 2, 64)).reshape(*blocks.shape, 8, 32)
    high = _bits(blocks["qh"].reshape(*blocks.shape, 2, 32), range(0, 8, 2), 3).reshape(low.shape)
    return (low | (high << 4)) - np.int8(32)


def _iq4_xs(blocks: Blocks) -> Codes:
    return _nibbles(blocks["qs"].reshape(*blocks.shape, -1, 16))


def _sixes(whole: Blocks, halves: Blocks) -> Floats:
    """8 integers of 6 bits: 4 in bytes, whose upper bits complete the halves of 4 others."""
    return np.concatenate([whole & 63, halves | (whole >> 2 & 0x30)], -1).astype(np.float32)


def _k_scales(blocks: Blocks) -> Floats:
    packed = blocks["scales"]
    return _d(blocks)[..., None] * _sixes(packed[..., :4], packed[..., 8:] & 15)


def _k_minima(blocks: Blocks) -> Floats:
    packed = blocks["scales"]
    return -np.asarray(blocks["dmin"], np.float32)[..., None] * _sixes(packed[..., 4:8], packed[..., 8:] >> 4)


def _q6_k_scales(blocks: Blocks) -> Floats:
    return _d(blocks)[..., None] * blocks["scales"].astype(np.float32)


def _iq4_xs_scales(blocks: Blocks) -> Floats:
    """6 bits: 4 of them by turns in the halves of bytes, 2 in a word."""
    low = np.stack([blocks["scales_l"] & 15, blocks["scales_l"] >> 4], -1).reshape(*blocks.shape, 8)
    high = (blocks["scales_h"][..., None] >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    return _d(blocks)[..., None] * (np.asarray(low | (high << 4), np.float32) - np.float32(32))


def _powers_of_two(blocks: Blocks) -> Floats:
    """OCP's E8M0, whose largest is NaN. ggml halves them and doubles the values of the codes."""
    exponents = blocks["e"].astype(np.int32)
    return np.where(exponents == 255, np.float32(np.nan), np.ldexp(np.float32(1), exponents.clip(max=254) - 127))


def _nvfp4(blocks: Blocks) -> Codes:
    return _nibbles(blocks["qs"].reshape(*blocks.shape, 4, 8))


def _nvfp4_scales(blocks: Blocks) -> Floats:
    """E4M3 without a sign, and with a zero where others have NaN."""
    bits = blocks["d"]
    return np.where(bits == 127, np.float32(0), np.where(bits > 127, np.float32(np.nan), VALUES[DType.F8_E4M3][bits]))


_I8, _I4, _U4, _FP4, _NL4 = DType.I8, DType.I4, DType.U4, DType.F4_E2M1, DType.NL4
_F16, _F32, _BF16 = DType.F16, DType.F32, DType.BF16
_HALF = [("d", "<f2")]
_HALVES = [*_HALF, ("m", "<f2")]
_K_HEAD = [*_HALF, ("dmin", "<f2"), ("scales", "u1", 12)]
_LOW, _HIGH = ("qs", "u1", 16), ("qh", "u1", 4)
_XS = [*_HALF, ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)]
_6_K = [("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), *_HALF]

_TABLE: dict[str, tuple[Any, ...]] = {
    "Q8_0": (Numbers(_I8, 32, _F16), [*_HALF, ("qs", "i1", 32)], _q8, _d),
    "Q4_0": (Numbers(_I4, 32, _F16), [*_HALF, _LOW], _q4_0, _d),
    "Q4_1": (Numbers(_U4, 32, _F16, _F16), [*_HALVES, _LOW], _q4, _d, _m),
    "Q5_0": (Numbers(_I8, 32, _F16), [*_HALF, _HIGH, _LOW], _q5_0, _d),
    "Q5_1": (Numbers(_I8, 32, _F16, _F16), [*_HALVES, _HIGH, _LOW], _q5_1, _d, _m),
    "Q4_K": (Numbers(_U4, 32, _F32, _F32), [*_K_HEAD, ("qs", "u1", 128)], _q4_k, _k_scales, _k_minima),
    "Q5_K": (
        Numbers(_I8, 32, _F32, _F32),
        [*_K_HEAD, ("qh", "u1", 32), ("qs", "u1", 128)],
        _q5_k,
        _k_scales,
        _k_minima,
    ),
    "Q6_K": (Numbers(_I8, 16, _F32), _6_K, _q6_k, _q6_k_scales),
    "IQ4_NL": (Numbers(_NL4, 32, _F16), [*_HALF, _LOW], _q4, _d),
    "IQ4_XS": (Numbers(_NL4, 32, _F32), _XS, _iq4_xs, _iq4_xs_scales),
    "MXFP4": (Numbers(_FP4, 32, _BF16), [("e", "u1"), _LOW], _q4, _powers_of_two),
    "NVFP4": (Numbers(_FP4, 16, _F16), [("d", "u1", 4), ("qs", "u1", 32)], _nvfp4, _nvfp4_scales),
}

FORMATS: Mapping[GGMLQuantizationType, BlockFormat] = {
    GGMLQuantizationType[name]: BlockFormat(numbers, np.dtype(fields), *made)
    for name, (numbers, fields, *made) in _TABLE.items()
}
"""The types whose blocks are numbers that linears are multiplied in. All others are dequantised."""
