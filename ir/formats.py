"""The number formats of linears: how a weight is held, how an input is read, and in which order either lies in memory.

A `Scheme` is all that there is to know of one. Lowering, packing, sizes, kernels and `--dtype` follow from it, for each
linear on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from llmc.ir.types import DType, Layout, TensorType


class Part(Enum):
    """The arrays that quantised numbers are held in."""

    DATA = "data"
    SCALE = "scale"


@dataclass(frozen=True)
class Numbers:
    """Rows of numbers: each an `element`, times a float32 scale for every `group` columns of its row (0: one scale for
    the row; None: no scales)."""

    element: DType
    group: int | None = None

    def __str__(self) -> str:
        if self.group is None:
            return self.element.value
        return f"{self.element.value} with a scale for {f'{self.group} columns' if self.group else 'the row'}"

    @property
    def parts(self) -> tuple[Part, ...]:
        return (Part.DATA,) if self.group is None else (Part.DATA, Part.SCALE)

    @property
    def largest(self) -> int:
        """What the largest of a group becomes, where there are scales."""
        return int(2 ** (8 * self.element.num_bytes - 1)) - 1

    def num_scales(self, columns: int) -> int:
        """Of a row of so many columns."""
        if self.group is None:
            return 0
        return -(-columns // self.group) if self.group else 1

    def part_type(self, part: Part, values: TensorType) -> TensorType:
        """The type of a part of a matrix [N, K]: scales are f32[N] where there is one to a row, else f32[N, groups]."""
        if part is Part.DATA:
            return values.with_dtype(self.element)
        rows, columns = values.static_shape()
        return TensorType(DType.F32, (rows, self.num_scales(columns)) if self.group else (rows,))

    def misfit(self, parts: Sequence[TensorType]) -> str | None:
        """What the parts of a matrix [N, K], its data first, should be instead; None where they are as they should."""
        wanted = [self.part_type(part, parts[0]) for part in self.parts]
        if [(p.dtype, p.shape) for p in parts] == [(w.dtype, w.shape) for w in wanted]:
            return None
        return f"expected {' with '.join(map(str, wanted))}"


@dataclass(frozen=True)
class Scheme:
    """How a linear holds its weight and reads its input; all accumulate in float32.

    `name` is what --dtype calls it. `stored`: what embeddings and the KV cache keep their values in. `cpu`: the type
    that its kernels are compiled for (templates/cpu/operand.h), `cuda`: the type of its elements (templates/cuda);
    None where a backend has no kernels for it.
    """

    name: str
    weight: Numbers
    operand: Numbers
    stored: DType
    cpu: str | None = None
    cuda: str | None = None

    F32: ClassVar[Scheme]
    BF16: ClassVar[Scheme]
    F16: ClassVar[Scheme]
    INT8: ClassVar[Scheme]

    def __str__(self) -> str:
        """As the IR writes it: int8g64 where the columns of a scale are a choice."""
        groups = [n.group for n in (self.weight, self.operand) if n.group is not None]
        return f"{self.name}g{max(groups)}" if groups else self.name

    @staticmethod
    def named(text: str) -> Scheme:
        """The scheme of a --dtype, or of what `str` gives. ValueError says what there is."""
        name, grouped, group = text.partition("g")
        if text in _BY_NAME:
            return _BY_NAME[text]
        if grouped and group.isdecimal() and name in _GROUPED:
            return _GROUPED[name](int(group))
        known = [*_BY_NAME, *(f"{name}gN" for name in _GROUPED)]
        raise ValueError(f"expected one of {', '.join(known)}, got {text!r}")

    @staticmethod
    def int8(group: int) -> Scheme:
        """int8 weights with a scale per row, int8 inputs with a scale for every `group` columns of a row."""
        if group not in (0, 32) and (group < 0 or group % 64):
            raise ValueError(f"activation group {group}: expected 0 (whole rows), 32, or a multiple of 64")
        return Scheme("int8", Numbers(DType.I8, 0), Numbers(DType.I8, group), DType.BF16, cpu=f"Int8<{group}>")


def _plain(name: str, element: DType, cpu: str | None = None, cuda: str | None = None) -> Scheme:
    return Scheme(name, Numbers(element), Numbers(element), element, cpu, cuda)


Scheme.F32 = _plain("f32", DType.F32, cpu="F32")
Scheme.BF16 = _plain("bf16", DType.BF16, cpu="Bf16", cuda="bf16")
Scheme.F16 = _plain("f16", DType.F16, cuda="f16")
Scheme.INT8 = Scheme.int8(64)

SCHEMES = (Scheme.F32, Scheme.BF16, Scheme.F16, Scheme.INT8)  # as --dtype lists them, with the usual groups
_BY_NAME = {scheme.name: scheme for scheme in SCHEMES}
_GROUPED = {"int8": Scheme.int8}


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
class Groups(Layout):
    """Storage of int8 rows [T, K] with a float32 scale for every `size` columns of a row, 0: one for the row."""

    size: int

    def __str__(self) -> str:
        return f"groups{self.size}"


def weight_numbers(type_: TensorType) -> Numbers:
    """The numbers of a matrix: those of its scheme where it is packed."""
    return type_.layout.scheme.weight if isinstance(type_.layout, Packed) else Numbers(type_.dtype)


def row_numbers(type_: TensorType) -> Numbers:
    """The numbers of rows [T, K]."""
    return Numbers(type_.dtype, type_.layout.size if isinstance(type_.layout, Groups) else None)
