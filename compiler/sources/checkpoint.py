"""Named tensors that lie in a file until somebody reads them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc.compiler.sources.errors import SourceError


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

    def read(self, rows: Rows | None = None) -> NDArray[Any]:
        """The values as stored, of shape `shape` (or `rows[1] - rows[0]` rows of it).

        F32 and F16 come as those numpy types, BF16 as uint16 bit patterns (numpy has no bf16). The array may
        be a view of the mapped file: read-only for the caller. Raises SourceError for any other format.
        """
        if not self.dtype.is_weight_format:
            raise SourceError(
                f"{self.origin}: tensor {self.name} is stored as {self.dtype.value}, llmc reads F32, F16 and BF16"
            )
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
class Checkpoint:
    """Every tensor of a model by name, sorted."""

    tensors: Mapping[str, StoredTensor]

    def __getitem__(self, name: str) -> StoredTensor:
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)


def checkpoint_of(tensors: list[StoredTensor]) -> Checkpoint:
    """A checkpoint of these tensors; SourceError where two share a name."""
    by_name: dict[str, StoredTensor] = {}
    for tensor in sorted(tensors, key=lambda t: t.name):
        if (other := by_name.get(tensor.name)) is not None:
            raise SourceError(f"tensor {tensor.name} is stored twice: in {other.origin} and in {tensor.origin}")
        by_name[tensor.name] = tensor
    return Checkpoint(by_name)
