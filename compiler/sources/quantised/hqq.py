"""HQQ as transformers saves it: W_q of a matrix reshaped to groups, with float scales and zero points beside it.

A weight is (code - zero) * scale, that is code * scale - zero * scale: the product is exact in float32 for 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from llmc.compiler.sources.checkpoint import Rows, StoredDtype, StoredTensor
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.quantised.elements import F32
from llmc.compiler.sources.quantised.kept import Array, kept
from llmc.compiler.sources.quantised.module import FLOATS, Module, Reading, rows_f32
from llmc.compiler.sources.quantised.stated import Stated
from llmc.ir.formats import Numbers, Part
from llmc.ir.types import DType

_WHOLE = (StoredDtype.I32, StoredDtype.I64)
_FLAG = (StoredDtype.U8, StoredDtype.BOOL, StoredDtype.I32)
# Beside data, scale and zero: what made them, of which the bits, the group, the axis and the shape are looked at.
_META = frozenset(
    (
        *("nbits", "group_size", "shape", "axis", "packing", "unpack_view_dtype", "view_as_float", "quant_scale"),
        *("quant_zero", "compute_dtype", "offload_meta", "encoded_state_dict", "stores_quant_config", "channel_wise"),
        *("optimize", "round_zero"),
    )
)


@dataclass(frozen=True)
class Hqq:
    title = "HQQ"

    @staticmethod
    def of(stated: Stated) -> Hqq:
        return Hqq()

    def read(self, module: Module) -> Reading | None:
        if "W_q" not in module:
            return None
        packed = module.matrix("W_q", StoredDtype.U8)
        bits = _number(module, "nbits")
        if bits not in (4, 8):
            raise SourceError(f"{packed.origin}: {packed.name} has {bits} bits, not supported: expected 4 or 8")
        for flag in ("view_as_float", "quant_scale", "quant_zero"):
            if flag in module and module.take(flag, _FLAG, (), (1,)).bits().any():
                raise SourceError(f"{packed.origin}: {module.name(flag)} is set, which is not supported")
        shape = tuple(int(size) for size in module.take("shape", _WHOLE, (2,)).bits())
        group = _number(module, "group_size") if "group_size" in module else shape[1]
        matrix = _Matrix(packed, bits, (shape[0], shape[1]), group)
        used = ("W_q", "scale", "zero", *(name for name in module.tensors if name in _META))
        return matrix.by_rows(module, used) if _number(module, "axis") == 1 else matrix.by_columns(module, used)


@dataclass(frozen=True)
class _Matrix:
    """A weight [N, K], reshaped to groups of `group` numbers; 4-bit codes of its first half in high halves of bytes."""

    packed: StoredTensor
    bits: int
    shape: tuple[int, int]
    group: int

    def by_rows(self, module: Module, used: tuple[str, ...]) -> Reading:
        """axis 1: groups are columns of a row one after the other."""
        n, k = self.shape
        per_row = self._groups(k, (n * k // self.group, self.group))
        scale, zero = (module.take(name, FLOATS, (n * per_row, 1)) for name in ("scale", "zero"))

        def scales(rows: Rows) -> F32:
            return rows_f32(scale, (rows[0] * per_row, rows[1] * per_row)).reshape(-1, per_row)

        def offsets(rows: Rows) -> F32:
            zeros = rows_f32(zero, (rows[0] * per_row, rows[1] * per_row)).reshape(-1, per_row)
            moved = zeros - np.float32(128) if self.bits == 8 else zeros
            return np.asarray(-moved * scales(rows), np.float32)

        def codes(rows: Rows) -> Array:
            found = self._codes(rows[0] * per_row, rows[1] * per_row).reshape(-1, k)
            return (found.astype(np.int16) - 128).astype(np.int8) if self.bits == 8 else found

        element = DType.U4 if self.bits == 4 else DType.I8
        numbers = Numbers(element, self.group if per_row > 1 else 0, DType.F32, DType.F32)
        return kept(module, used, self.shape, numbers, {Part.DATA: codes, Part.SCALE: scales, Part.OFFSET: offsets})

    def by_columns(self, module: Module, used: tuple[str, ...]) -> Reading:
        """axis 0: number i of a group lies i * N * K / group after its first, so that columns share no scale."""
        n, k = self.shape
        width = n * k // self.group
        self._groups(n * k, (self.group, width))
        scale, zero = (module.take(name, FLOATS, (1, width)) for name in ("scale", "zero"))

        def read(rows: Rows | None) -> F32:
            start, stop = (row * k for row in rows or (0, n))
            codes = self._codes(start // width, -(-stop // width)).reshape(-1)[start % width :][: stop - start]
            at = np.arange(start, stop) % width
            found = (codes.astype(np.float32) - rows_f32(zero)[0][at]) * rows_f32(scale)[0][at]
            return np.asarray(found.reshape(-1, k), np.float32)

        of = self.packed
        tensor = StoredTensor(module.name("weight"), StoredDtype.F32, self.shape, f"{of.origin}:{of.name}", read)
        return Reading(tensor, frozenset(used), "along axis 0: groups are no neighbours in a row")

    def _groups(self, size: int, reshaped: tuple[int, int]) -> int:
        """How many groups `size` numbers have. SourceError where W_q is not of this shape."""
        expected = (-(-reshaped[0] * self.bits // 8), reshaped[1])
        if size % self.group:
            raise SourceError(
                f"{self.packed.origin}: tensor {self.packed.name} has groups of {self.group} over the ends of rows of "
                f"{size}, which is not supported"
            )
        if prod(reshaped) != prod(self.shape) or self.packed.shape != expected:
            raise SourceError(
                f"{self.packed.origin}: tensor {self.packed.name} has shape {list(self.packed.shape)}, expected "
                f"{list(expected)} of a weight {list(self.shape)} in {self.bits} bits and groups of {self.group}"
            )
        return size // self.group

    def _codes(self, start: int, stop: int) -> Array:
        """Rows [start, stop) of the reshaped matrix."""
        data = self.packed.bits()
        if self.bits == 8:
            return data[start:stop]
        half = len(data)
        high = data[start : min(stop, half)] >> 4
        low = data[max(start - half, 0) : max(stop - half, 0)] & 15
        return np.concatenate([high, low])


def _number(module: Module, name: str) -> int:
    return int(module.take(name, _WHOLE, (), (1,)).bits().reshape(()))
