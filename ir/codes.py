"""The values that the codes of quantised weights stand for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llmc.ir.types import DType

Array = npt.NDArray[np.generic]

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # OCP Microscaling Formats 1.0, table 5; codes 8 to 15: negative
NL4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # GGUF's IQ4_NL
E4M3_LARGEST = 448.0


def _e4m3() -> npt.NDArray[np.float32]:
    """Of each byte: sign, 4 bits of exponent (bias 7), 3 of mantissa; all ones is NaN (OCP OFP8)."""
    bits = np.arange(256)
    exponent, mantissa = (bits >> 3) & 15, (bits & 7) / 8.0
    value = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7.0))
    value[(bits & 127) == 127] = np.nan
    return np.asarray(np.where(bits & 128, -value, value), np.float32)


VALUES: dict[DType, npt.NDArray[np.float32]] = {
    DType.F4_E2M1: np.asarray([*E2M1, *(-v for v in E2M1)], np.float32),
    DType.NL4: np.asarray(NL4, np.float32),
    DType.F8_E4M3: _e4m3(),
}
"""By code, of the elements whose codes are no integers."""

SMALLEST_CODE = {DType.I8: -128, DType.I4: -8, DType.U4: 0}
LARGEST_CODE = {DType.I8: 127, DType.I4: 7, DType.U4: 15}


def code_values(codes: Array, element: DType) -> npt.NDArray[np.float32]:
    """float32, exact."""
    table = VALUES.get(element)
    return codes.astype(np.float32) if table is None else table[codes.astype(np.uint8)]


def nearest_codes(x: npt.NDArray[np.float32], element: DType) -> Array:
    """The codes of the values nearest to x: integers to even, others to the even code; beyond the ends, the ends."""
    if element in LARGEST_CODE:
        return np.clip(np.rint(x), SMALLEST_CODE[element], LARGEST_CODE[element]).astype(np.int8)
    table = VALUES[element]
    order = np.argsort(table, kind="stable")
    order = order[: np.isfinite(table).sum()]  # NaNs sort last
    values = table[order].astype(np.float64)
    right = np.clip(np.searchsorted(values, x, side="left"), 1, len(values) - 1)
    low, high = x - values[right - 1], values[right] - x
    even = order[right] % 2 == 0
    nearest = np.where((high < low) | ((high == low) & even), right, right - 1)
    return order[nearest].astype(np.uint8)
