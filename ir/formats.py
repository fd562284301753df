"""The number formats of linears: how a weight is held, how an input is read, and in which order either lies in memory.

A `Scheme` is all that there is to know of one. Lowering, packing, sizes, kernels and `--dtype` follow from it, for each
linear on its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from llmc.ir.types import DType, Layout, TensorType


class Part(Enum):
    """The arrays that quantised numbers are held in."""

    DATA = "data"
    SCALE = "scale"
    OFFSET = "offset"


@dataclass(frozen=True)
class Numbers:
    """Rows of numbers: each an `element`, times a scale for every `group` columns of its row (0: one scale for the
    row; None: no scales), plus an offset where there is one.

    `scale`: the type of scales. `offset`: the type of offsets; float offsets are added to code * scale, int8 ones to
    the code before the scale is applied (zero points, negated).
    """

    element: DType
    group: int | None = None
    scale: DType = DType.F32
    offset: DType | None = None

    def __str__(self) -> str:
        if self.group is None:
            return self.element.value
        offset = "" if self.offset is None else f" and a {self.offset.value} offset"
        columns = f"{self.group} columns" if self.group else "the row"
        return f"{self.element.value} with a {self.scale.value} scale{offset} for {columns}"

    @property
    def parts(self) -> tuple[Part, ...]:
        if self.group is None:
            return (Part.DATA,)
        return (Part.DATA, Part.SCALE) if self.offset is None else (Part.DATA, Part.SCALE, Part.OFFSET)

    def num_scales(self, columns: int) -> int:
        """Of a row of so many columns."""
        if self.group is None:
            return 0
        return -(-columns // self.group) if self.group else 1

    def part_type(self, part: Part, values: TensorType) -> TensorType:
        """The type of a part of a matrix [N, K]: scales and offsets are [N] where there is one to a row, else [N,
        groups]."""
        if part is Part.DATA:
            return values.with_dtype(self.element)
        dtype = self.offset if part is Part.OFFSET else self.scale
        if dtype is None:
            raise ValueError(f"{self} have no offsets")
        rows, columns = values.static_shape()
        return TensorType(dtype, (rows, self.num_scales(columns)) if self.group else (rows,))

    def misfit(self, parts: Sequence[TensorType]) -> str | None:
        """What the parts of a matrix [N, K], its data first, should be instead; None where they are as they should."""
        wanted = [self.part_type(part, parts[0]) for part in self.parts]
        if [(p.dtype, p.shape) for p in parts] == [(w.dtype, w.shape) for w in wanted]:
            return None
        return f"expected {' with '.join(map(str, wanted))}"

    def bits(self, columns: int) -> float:
        """Of a weight in a row of so many columns, scales and offsets counted."""
        beside = (self.scale.num_bits if self.group is not None else 0) + (self.offset.num_bits if self.offset else 0)
        return self.element.num_bits + beside * self.num_scales(columns) / columns


@dataclass(frozen=True)
class Scheme:
    """How a linear holds its weight and reads its input; all accumulate in float32, int8 inputs in integers first.

    As text (--dtype, the IR): the weight, then `_` and the input where it is not the usual one. A weight is f32, bf16,
    f16, or int8, int4, nl4, mxfp4, nvfp4, fp8 with `gN` for the columns of a scale, `z` for int8 offsets (zero
    points) or `m` for offsets like the scale, and `f`, `h` or `b` for scales in f32, f16, bf16. An input is f32, bf16
    or int8gN, quantised as it comes. int4g64z, int8_int8g32, fp8, mxfp4_bf16.
    """

    weight: Numbers
    operand: Numbers

    F32: ClassVar[Scheme]
    BF16: ClassVar[Scheme]
    F16: ClassVar[Scheme]
    INT8: ClassVar[Scheme]
    INT4: ClassVar[Scheme]

    def __post_init__(self) -> None:
        if misfit := _misfit(self.weight, self.operand):
            raise ValueError(misfit)

    def __str__(self) -> str:
        text = _weight_text(self.weight)
        if self.operand == usual_operand(self.weight):
            return text
        group = "" if self.operand.group is None else f"g{self.operand.group}"
        return f"{text}_{_OPERAND_NAMES[self.operand.element]}{group}"

    @property
    def name(self) -> str:
        return str(self)

    @property
    def stored(self) -> DType:
        """What embeddings and the KV cache keep their values in."""
        return self.weight.element if self.weight.group is None else DType.BF16

    @staticmethod
    def named(text: str) -> Scheme:
        """The scheme of a --dtype, or of what `str` gives. ValueError says what there is."""
        weight, _, operand = text.partition("_")
        numbers = _named_weight(weight)
        if numbers is None or (operand and not _OPERAND.fullmatch(operand)):
            raise ValueError(f"expected {_THERE_IS}, got {text!r}")
        if not operand:
            return Scheme.of(numbers)
        name, _, group = operand.partition("g")
        return Scheme(numbers, Numbers(DType.I8, int(group)) if name == "int8" else Numbers(DType(name)))

    @staticmethod
    def of(weight: Numbers) -> Scheme:
        """Weights in these numbers, with the inputs that are usual for them."""
        return Scheme(weight, usual_operand(weight))


@dataclass(frozen=True)
class _Coded:
    """A name of coded weights, and what it means where nothing else is said."""

    element: DType
    group: int
    scale: DType | None = None  # else float32 for rows, float16 for groups


_CODED = {
    "int8": _Coded(DType.I8, 0),
    "int4": _Coded(DType.I4, 64),
    "nl4": _Coded(DType.NL4, 32),
    "mxfp4": _Coded(DType.F4_E2M1, 32, DType.BF16),
    "nvfp4": _Coded(DType.F4_E2M1, 16, DType.F16),
    "fp8": _Coded(DType.F8_E4M3, 0),
}
_PLAIN = {"f32": DType.F32, "bf16": DType.BF16, "f16": DType.F16}
_SCALES = {"f": DType.F32, "h": DType.F16, "b": DType.BF16}
_WEIGHT = re.compile(r"(int8|int4|nl4|mxfp4|nvfp4|fp8)(?:g(\d+))?([zm]?)([fhb]?)")
_OPERAND = re.compile(r"f32|bf16|int8g\d+")
_OPERAND_NAMES = {DType.F32: "f32", DType.BF16: "bf16", DType.F16: "f16", DType.I8: "int8"}
_THERE_IS = f"one of {', '.join([*_PLAIN, *_CODED])}, as int4g32, int4g64z, int8_int8g32"


def _named_weight(text: str) -> Numbers | None:
    if text in _PLAIN:
        return Numbers(_PLAIN[text])
    found = _WEIGHT.fullmatch(text)
    if found is None:
        return None
    name, group, offsets, scale = found.groups()
    coded = _CODED[name]
    columns = int(group) if group else coded.group
    kept = _SCALES[scale] if scale else _usual_scale(coded, columns)
    element = DType.U4 if coded.element is DType.I4 and offsets else coded.element
    return Numbers(element, columns, kept, {"": None, "z": DType.I8, "m": kept}[offsets])


def _usual_scale(coded: _Coded, group: int) -> DType:
    return coded.scale or (DType.F16 if group else DType.F32)


def _weight_text(numbers: Numbers) -> str:
    if numbers.group is None:
        return numbers.element.value
    element = DType.I4 if numbers.element is DType.U4 else numbers.element
    names = [name for name, coded in _CODED.items() if coded.element is element]
    name = next((n for n in names if _CODED[n].group == numbers.group), names[0])
    coded = _CODED[name]
    shown = numbers.group != coded.group or (element is not DType.F4_E2M1 and numbers.group)
    group = f"g{numbers.group}" if shown else ""
    offsets = "" if numbers.offset is None else "z" if numbers.offset is DType.I8 else "m"
    usual = numbers.scale is _usual_scale(coded, numbers.group)
    scale = "" if usual else next(key for key, dtype in _SCALES.items() if dtype is numbers.scale)
    return f"{name}{group}{offsets}{scale}"


def usual_operand(weight: Numbers) -> Numbers:
    """What inputs of weights in these numbers are where nothing else is said: int8 in groups like the weight's."""
    if weight.group is None:
        return Numbers(weight.element)
    if weight.element is DType.F8_E4M3:
        return Numbers(DType.BF16)
    return Numbers(DType.I8, max(weight.group, 32) if weight.group else 64)


def _misfit(weight: Numbers, operand: Numbers) -> str | None:
    """Why no linear multiplies them, or None."""
    if weight.group is None:
        return None if operand == weight else f"{weight.element.value} weights with inputs of {operand}"
    if weight.group not in (0, 16, 32) and (weight.group < 0 or weight.group % 64):
        return f"weight group {weight.group}: expected 0 (whole rows), 16, 32, or a multiple of 64"
    if weight.offset not in (None, DType.I8, weight.scale):
        return f"offsets in {weight.offset} beside scales in {weight.scale.value}"
    if (weight.element is DType.U4) != (weight.offset is not None) and weight.element is not DType.I8:
        return f"{weight.element.value} weights {'without' if weight.offset is None else 'with'} offsets"
    if operand.element is DType.BF16:
        if weight.offset not in (None, DType.I8):
            return "float offsets with bf16 inputs: leave the inputs int8"
        return "groups of 16 with bf16 inputs: leave the inputs int8" if weight.group == 16 else None
    if operand.element is not DType.I8 or operand.group is None:
        return f"{weight.element.value} weights with inputs of {operand}: expected bf16 or int8"
    if operand.group not in (0, 32) and (operand.group < 0 or operand.group % 64):
        return f"activation group {operand.group}: expected 0 (whole rows), 32, or a multiple of 64"
    if weight.element is DType.F8_E4M3:
        return "fp8 weights with int8 inputs: leave the inputs bf16"
    if weight.group and operand.group and max(weight.group, operand.group) % min(weight.group, operand.group):
        return f"weight groups of {weight.group} with activation groups of {operand.group}: one must divide the other"
    return None


Scheme.F32 = Scheme.named("f32")
Scheme.BF16 = Scheme.named("bf16")
Scheme.F16 = Scheme.named("f16")
Scheme.INT8 = Scheme.named("int8")
Scheme.INT4 = Scheme.named("int4")

SCHEMES = tuple(map(Scheme.named, (*_PLAIN, *_CODED)))  # one of each kind of weight


class WeightLayout(Enum):
    """The order in which the matrix of a linear lies in memory (codegen/packing.py has the addresses)."""

    PANELS = "panels"  # for CPU kernels: panels of 32 rows
    ROWS = "rows"  # for CUDA kernels: row by row, each padded with zeros to 16 bytes


@dataclass(frozen=True)
class Packed(Layout):
    """Storage of a weight's data for the kernels of a scheme. The shape of the type stays the logical [N, K]."""

    scheme: Scheme
    order: WeightLayout

    def __str__(self) -> str:
        return f"{self.scheme} in {self.order.value}"


@dataclass(frozen=True)
class ScalePanels(Layout):
    """Storage of scales or offsets [N, groups] of a weight for CPU kernels of a scheme: for every panel of 32 rows,
    group by group, as many groups as its padded columns have."""

    scheme: Scheme

    def __str__(self) -> str:
        return f"scales of {self.scheme}"


@dataclass(frozen=True)
class Groups(Layout):
    """Storage of int8 rows [T, K] with a float32 scale for every `size` columns of a row, 0: one for the row."""

    size: int

    def __str__(self) -> str:
        return f"groups{self.size}"


KV_NAMES = {DType.F32: "f32", DType.BF16: "bf16", DType.F16: "f16", DType.I8: "int8", DType.F8_E4M3: "fp8"}
"""What people call the types of a KV cache."""


def kv_numbers(dtype: DType) -> Numbers:
    """What a head's key or value of one position is kept in: bytes with a scale of its own, others as they are."""
    return Numbers(dtype, 0 if dtype in (DType.I8, DType.F8_E4M3) else None)


def weight_numbers(type_: TensorType) -> Numbers:
    """The numbers of a matrix: those of its scheme where it is packed."""
    return type_.layout.scheme.weight if isinstance(type_.layout, Packed) else Numbers(type_.dtype)


def row_numbers(type_: TensorType) -> Numbers:
    """The numbers of rows [T, K]."""
    return Numbers(type_.dtype, type_.layout.size if isinstance(type_.layout, Groups) else None)
