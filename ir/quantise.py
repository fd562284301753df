"""Matrices as codes, scales and offsets, and what those stand for: the arithmetic of quantised weights and inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmc.ir.arrays import NUMPY, Array, Floats, round_to, widened
from llmc.ir.codes import E2M1, E4M3_LARGEST, LARGEST_CODE, NL4, code_values, nearest_codes
from llmc.ir.formats import Numbers, Part
from llmc.ir.types import DType

F32 = npt.NDArray[np.float32]
SMALLEST = np.float32(1e-30)  # of what kernels quantise in a step: below, a group is zero
_LARGEST = {DType.I8: 127.0, DType.F4_E2M1: E2M1[-1], DType.F8_E4M3: E4M3_LARGEST}
_ONE_SIDED = {DType.I4: -8.0, DType.NL4: float(NL4[0])}  # reach further below zero than above


@dataclass(frozen=True)
class Quantised:
    """A matrix [N, K]: codes, and scales and offsets [N, groups] in float32 (offsets in int8 as such)."""

    numbers: Numbers
    codes: Array
    scales: F32
    offsets: Array | None = None

    @classmethod
    def of(cls, parts: list[Array], numbers: Numbers) -> Quantised:
        """From arrays of their own."""
        codes, scales, *offsets = parts
        shaped = [p.reshape(len(codes), -1) for p in (scales, *offsets)]
        return cls(numbers, codes, shaped[0].astype(np.float32), *shaped[1:])

    def part(self, part: Part) -> Array:
        """As an array of its own: [N] where there is one scale to a row."""
        if part is Part.DATA:
            return self.codes
        found = self.scales if part is Part.SCALE else self.offsets
        if found is None:
            raise ValueError(f"{self.numbers} have no offsets")
        return found if self.numbers.group else found[:, 0]

    def floats(self) -> Floats:
        """float64 [N, K]: exact, but for the last bits of a code times a float32 scale plus an offset."""
        values, scales = widened(code_values(self.codes, self.numbers.element)), self._columns(self.scales)
        if self.offsets is None:
            return np.asarray(values * scales)
        offsets = self._columns(self.offsets)
        return np.asarray((values + offsets) * scales if self.numbers.offset is DType.I8 else values * scales + offsets)

    def _columns(self, parts: Array) -> Floats:
        width = self.codes.shape[1]
        return widened(np.repeat(parts, self.numbers.group or width, 1)[:, :width])


def quantise(x: F32, numbers: Numbers) -> Quantised:
    """A weight [N, K] rounded to nearest, computed in float32, per group of a row (the last may be shorter).

    The largest of a group becomes the largest code: with offsets, smallest and largest (and zero) become the ends.
    Scales are rounded to their type before codes are chosen. A group of zeros has scale 0 and stands for zeros.
    """
    groups = _grouped(x, numbers.group)
    scales, offsets = _symmetric(groups, numbers) if numbers.offset is None else _between(groups, numbers)
    codes = nearest(groups, scales, offsets, numbers)
    return Quantised(numbers, codes.reshape(len(x), -1)[:, : x.shape[1]], scales, offsets)


def nearest(groups: F32, scales: F32, offsets: Array | None, numbers: Numbers) -> Array:
    """The codes of groups [..., columns] with these scales and offsets [...]."""
    steps = scales[..., None]
    shift = np.zeros_like(steps) if offsets is None else offsets.astype(np.float32)[..., None]
    in_steps = numbers.offset is DType.I8
    scaled = np.divide(groups if in_steps else groups - shift, steps, out=np.zeros_like(groups), where=steps != 0)
    scaled = scaled - shift if in_steps else scaled
    return nearest_codes(scaled, numbers.element).astype(NUMPY[numbers.element])


def quantise_input(x: F32, numbers: Numbers) -> Quantised:
    """Rows [T, K] in int8 or fp8, as kernels do it to what is computed in a step (inputs of linears, keys and values):
    scale = max|x| / the largest code, code = x * (the largest code / max|x|) to nearest even; of fp8 no denormals."""
    limit = np.float32(_LARGEST[numbers.element])
    groups = _grouped(x, numbers.group)
    largest = np.abs(groups).max(-1)
    inverse = np.divide(limit, largest, out=np.zeros_like(largest), where=largest >= SMALLEST)
    codes = nearest_codes(groups * inverse[..., None], numbers.element).astype(NUMPY[numbers.element])
    if numbers.element is DType.F8_E4M3:
        codes = np.where(codes & 0x7F < 8, codes & 0x80, codes).astype(np.uint8)
    scales = np.where(largest >= SMALLEST, largest / limit, np.float32(0))
    return Quantised(numbers, codes.reshape(len(x), -1)[:, : x.shape[1]], scales)


def _grouped(x: F32, group: int | None) -> F32:
    """[N, groups, columns], the last group filled with zeros."""
    size = group or x.shape[1]
    return np.pad(x, ((0, 0), (0, -x.shape[1] % size))).reshape(len(x), -1, size)


def _symmetric(groups: F32, numbers: Numbers) -> tuple[F32, None]:
    if numbers.element in _ONE_SIDED:
        at = np.abs(groups).argmax(-1, keepdims=True)
        scales = np.take_along_axis(groups, at, -1)[..., 0] / np.float32(_ONE_SIDED[numbers.element])
    else:
        largest = np.abs(groups).max(-1)
        scales = largest / np.float32(_LARGEST[numbers.element])
        if numbers.element is DType.F4_E2M1 and numbers.scale is DType.BF16:  # MX: a power of two
            exponent = np.floor(np.log2(largest, out=np.full_like(largest, -np.inf), where=largest > 0)) - 2
            scales = np.exp2(exponent).astype(np.float32)
    return _rounded(scales, numbers.scale), None


def _between(groups: F32, numbers: Numbers) -> tuple[F32, Array]:
    largest = np.float32(LARGEST_CODE[numbers.element])
    smallest = np.float32(0.0) if numbers.element is DType.U4 else -largest
    low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    scales = _rounded((high - low) / (largest - smallest), numbers.scale)
    if numbers.offset is not DType.I8:
        return scales, _rounded(low - smallest * scales, numbers.scale)
    steps = np.divide(low, scales, out=np.zeros_like(low), where=scales != 0)
    return scales, np.clip(np.rint(steps - smallest), -128, 127).astype(np.int8)


def _rounded(x: F32, dtype: DType) -> F32:
    return np.asarray(round_to(x, dtype), np.float32)
