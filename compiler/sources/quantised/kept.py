"""Parameters in the numbers that a checkpoint stores them in, or as floats where no linear multiplies those."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.compiler.sources.checkpoint import QuantisedTensor, Rows, StoredDtype, StoredTensor
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.quantised.elements import F32
from llmc.compiler.sources.quantised.module import Module, Reading
from llmc.ir.formats import Numbers, Part, Scheme
from llmc.ir.types import DType

Array = npt.NDArray[Any]
ReadRows = Callable[[Rows], Array]

# Scales of MX are powers of two, which bf16 holds; others than these are kept in float32.
_KEPT_AS = {
    StoredDtype.F16: DType.F16,
    StoredDtype.BF16: DType.BF16,
    StoredDtype.F8_E8M0: DType.BF16,
    StoredDtype.U8: DType.BF16,
}


def scale_type(stored: StoredDtype, group: int) -> DType:
    """What scales that are stored so are kept in; float32 for whole rows, which have few."""
    return _KEPT_AS.get(stored, DType.F32) if group else DType.F32


def kept(
    module: Module,
    used: tuple[str, ...],
    shape: tuple[int, int],
    numbers: Numbers,
    parts: Mapping[Part, ReadRows],
    name: str = "weight",
) -> Reading:
    """The parameter `name` [N, K] of a module, made of the tensors `used`; each part is read by rows of N."""

    def read(part: Part, rows: Rows | None) -> Array:
        values = parts[part](rows or (0, shape[0]))
        return values if numbers.group or part is Part.DATA else values[:, 0]

    of = module.tensors[used[0]]
    tensor = QuantisedTensor(module.name(name), numbers, shape, f"{of.origin}:{of.name}", read)
    try:
        Scheme.of(numbers)
    except ValueError as error:
        return Reading(as_floats(tensor), frozenset(used), str(error))
    return Reading(tensor, frozenset(used))


def as_floats(tensor: QuantisedTensor) -> StoredTensor:
    """The values that it stands for, in float32."""
    return StoredTensor(tensor.name, StoredDtype.F32, tensor.shape, tensor.origin, tensor.read_f32)


@dataclass(frozen=True)
class Integers:
    """A weight [N, K] of `bits` (4 or 8): (code + shift) * scale, in groups of `group` columns (0: whole rows).

    Each part by rows: signed codes, scales [N, groups] kept in `scale`, shifts [N, groups] (negated zero points, in
    integers; None where there are none). `symmetric`: shifts that are all zero are no part of it.
    """

    bits: int
    shape: tuple[int, int]
    group: int
    scale: DType
    codes: ReadRows
    scales: ReadRows
    shifts: ReadRows | None = None
    symmetric: bool = True

    def reading(self, module: Module, *used: str) -> Reading:
        numbers, parts = self._in_numbers()
        return kept(module, used, self.shape, numbers, parts)

    def in_order(self, module: Module, order: StoredTensor, *used: str) -> Reading:
        """Where `order` says which group each column is in: as floats, unless columns of a group are neighbours."""
        n, k = self.shape
        groups, group_of = -(-k // (self.group or k)), order.bits()
        if np.array_equal(group_of, np.arange(k) // (self.group or k)):
            return self.reading(module, *used)
        if group_of.min() < 0 or group_of.max() >= groups:
            named = int(group_of.min() if group_of.min() < 0 else group_of.max())
            raise SourceError(f"{order.origin}: tensor {order.name} names group {named}, expected 0 to {groups - 1}")

        def read(rows: Rows | None) -> F32:
            at = rows or (0, n)
            codes = self.codes(at) if self.shifts is None else self.codes(at) + self.shifts(at)[:, group_of]
            return np.asarray(codes.astype(np.float32) * self.scales(at)[:, group_of], np.float32)

        of = module.tensors[used[0]]
        tensor = StoredTensor(module.name("weight"), StoredDtype.F32, self.shape, f"{of.origin}:{of.name}", read)
        return Reading(tensor, frozenset(used), "in order of activation: groups are no neighbours in a row")

    def _in_numbers(self) -> tuple[Numbers, dict[Part, ReadRows]]:
        element = DType.I4 if self.bits == 4 else DType.I8
        parts = {Part.DATA: self.codes, Part.SCALE: self.scales}
        shifts = self.shifts
        if shifts is None or (self.symmetric and not shifts((0, self.shape[0])).any()):
            return Numbers(element, self.group, self.scale), parts
        if self.bits == 4:  # codes from 0 on: shifts of -8 and what zero points of 4 bits add
            parts[Part.DATA] = lambda rows: (self.codes(rows) + np.int8(8)).astype(np.uint8)
            parts[Part.OFFSET] = lambda rows: (shifts(rows) - 8).astype(np.int8)
            return Numbers(DType.U4, self.group, self.scale, DType.I8), parts
        if int(shifts((0, self.shape[0])).max()) <= 127:
            parts[Part.OFFSET] = lambda rows: shifts(rows).astype(np.int8)
            return Numbers(element, self.group, self.scale, DType.I8), parts
        parts[Part.OFFSET] = lambda rows: _product(shifts(rows), self.scales(rows))
        return Numbers(element, self.group, DType.F32, DType.F32), parts


def _product(shifts: Array, scales: F32) -> F32:
    """Exact for scales of 16 bits: 9 and 11 bits."""
    return shifts.astype(np.float32) * scales
