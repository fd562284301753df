"""Named tensors that lie in a file until somebody reads them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc.compiler.sources.errors import SourceError
from llmc.ir.formats import Numbers, Part
from llmc.ir.quantise import Quantised
from llmc.ir.types import DType, TensorType


class StoredDtype(Enum):
    """Element types a checkpoint can hold, under their safetensors names."""

    F64 = "F64"
    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    F8_E4M3 = "F8_E4M3"
    F8_E5M2 = "F8_E5M2"
    F8_E8M0 = "F8_E8M0"
    F4 = "F4"
    I64 = "I64"
    I32 = "I32"
    I16 = "I16"
    I8 = "I8"
    U64 = "U64"
    U32 = "U32"
    U16 = "U16"
    U8 = "U8"
    BOOL = "BOOL"

    @property
    def is_weight_format(self) -> bool:
        """Whether llmc reads parameters stored this way."""
        return self in (StoredDtype.F32, StoredDtype.F16, StoredDtype.BF16)


Rows = tuple[int, int]
"""Half-open range of the first axis."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a checkpoint; nothing of its data is in memory until `read`."""

    name: str
    dtype: StoredDtype
    shape: tuple[int, ...]
    origin: str
    """File and key it comes from, for messages."""
    reader: Callable[[Rows | None], NDArray[Any]] = field(repr=False, compare=False)
    dequantised_from: str | None = None
    """The format in low bits whose values it gives, because linears have no such numbers."""

    def read(self, rows: Rows | None = None) -> NDArray[Any]:
        """The values as stored, of shape `shape` (or `rows[1] - rows[0]` rows of it).

        F32 and F16 come as those numpy types, BF16 as uint16 bit patterns (numpy has no bf16). The array may
        be a view of the mapped file: read-only for the caller. Raises SourceError for any other format.
        """
        if not self.dtype.is_weight_format:
            raise SourceError(
                f"{self.origin}: tensor {self.name} is stored as {self.dtype.value}, llmc reads F32, F16 and BF16"
            )
        return self.bits(rows)

    def bits(self, rows: Rows | None = None) -> NDArray[Any]:
        """As `read`, of any format: floats that numpy lacks come as unsigned integers of their width."""
        if rows is not None and not (self.shape and 0 <= rows[0] <= rows[1] <= self.shape[0]):
            raise ValueError(f"rows {rows} of {self.name} with shape {self.shape}")
        values = self.reader(rows)
        expected = self.shape if rows is None else (rows[1] - rows[0], *self.shape[1:])
        if values.shape != expected:
            raise SourceError(f"{self.origin}: tensor {self.name} read as {values.shape}, its header says {expected}")
        return values

    def read_f32(self, rows: Rows | None = None) -> NDArray[np.float32]:
        """`read`, widened to float32 (exact for each of the three formats)."""
        values = self.read(rows)
        if self.dtype is StoredDtype.BF16:
            return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return values.astype(np.float32, copy=False)


@dataclass(frozen=True)
class QuantisedTensor:
    """A parameter [N, K] that a checkpoint holds quantised, under its float name, whatever the file's own layout is.

    Nothing of its data is in memory until it is read.
    """

    name: str
    numbers: Numbers
    shape: tuple[int, int]
    origin: str
    """File and key it comes from, for messages."""
    reader: Callable[[Part, Rows | None], NDArray[Any]] = field(repr=False, compare=False)

    def read_part(self, part: Part, rows: Rows | None = None) -> NDArray[Any]:
        """A part (ir/formats.py) of rows [start, stop) of N: codes one to a byte, scales and float offsets as float32,
        int8 offsets as int8. Raises SourceError, for scales and offsets that are not finite too."""
        values = self.reader(part, rows)
        num_rows = self.shape[0] if rows is None else rows[1] - rows[0]
        expected = self.numbers.part_type(part, TensorType(DType.F32, (num_rows, self.shape[1]))).static_shape()
        if values.shape != expected:
            raise SourceError(f"{self.origin}: {part.value} of {self.name} read as {values.shape}, expected {expected}")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0]) + (rows[0] if rows else 0)
            raise SourceError(f"{self.origin}: {part.value}s of row {row} of {self.name} are not finite: it is damaged")
        return values

    def read_f32(self, rows: Rows | None = None) -> NDArray[np.float32]:
        """The values that the parts stand for."""
        parts = [self.read_part(part, rows) for part in self.numbers.parts]
        return Quantised.of(parts, self.numbers).floats().astype(np.float32)


AnyTensor = StoredTensor | QuantisedTensor


@dataclass(frozen=True)
class Checkpoint:
    """Every tensor of a model by name, sorted. `metadata`: what the headers of its files say beside."""

    tensors: Mapping[str, AnyTensor]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> AnyTensor:
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)


def checkpoint_of(tensors: Sequence[AnyTensor], metadata: Mapping[str, str] | None = None) -> Checkpoint:
    """A checkpoint of these tensors; SourceError where two share a name."""
    by_name: dict[str, AnyTensor] = {}
    for tensor in sorted(tensors, key=lambda t: t.name):
        if (other := by_name.get(tensor.name)) is not None:
            raise SourceError(f"tensor {tensor.name} is stored twice: in {other.origin} and in {tensor.origin}")
        by_name[tensor.name] = tensor
    return Checkpoint(by_name, metadata or {})
