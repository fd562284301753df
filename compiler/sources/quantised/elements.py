"""Numbers as checkpoints pack them: several to a word or a byte, floats of a byte as bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.compiler.sources.checkpoint import StoredDtype
from llmc.ir.codes import VALUES
from llmc.ir.types import DType

Bytes = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]


def nibbles(data: Bytes) -> Bytes:
    """[..., n] bytes as [..., 2 n] numbers of 4 bits, the low half of a byte first."""
    found = np.empty((*data.shape[:-1], 2 * data.shape[-1]), np.uint8)
    found[..., 0::2] = data & 15
    found[..., 1::2] = data >> 4
    return found


def in_words(words: npt.NDArray[Any], bits: int) -> Bytes:
    """[..., n] int32 as the [..., 32 n / bits] numbers of 4 or 8 bits in them, lowest bits first."""
    data = np.ascontiguousarray(words, dtype="<i4").view(np.uint8)
    return nibbles(data) if bits == 4 else data


def floats(values: npt.NDArray[Any], dtype: StoredDtype) -> F32:
    """Values of a stored type as float32, exact but for F64. U8 stands for MX's exponents, as F8_E8M0 does."""
    match dtype:
        case StoredDtype.BF16:
            return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        case StoredDtype.F8_E4M3:
            return np.asarray(VALUES[DType.F8_E4M3][values])
        case StoredDtype.F8_E8M0 | StoredDtype.U8:  # 255 is NaN (OCP Microscaling Formats 1.0, 5.4.1)
            powers = np.ldexp(np.float32(1), values.astype(np.int32) - 127)
            return np.where(values == 255, np.float32(np.nan), powers).astype(np.float32)
    return values.astype(np.float32, copy=False)
