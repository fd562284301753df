"""The tensors of one module of a quantised checkpoint, and what a method makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from llmc.compiler.sources.checkpoint import AnyTensor, Rows, StoredDtype, StoredTensor
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.quantised.elements import F32, floats

FLOATS = (StoredDtype.F16, StoredDtype.BF16, StoredDtype.F32)


@dataclass(frozen=True)
class Module:
    """Its tensors by what follows its path: "qweight", "weight.absmax". `metadata`: of the checkpoint's files."""

    path: str
    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str, dtypes: Sequence[StoredDtype], *shapes: tuple[int, ...]) -> StoredTensor:
        """A tensor of one of these types and, where any are given, of one of these shapes. SourceError says what it
        should be."""
        tensor = self.tensors.get(name)
        if tensor is None:
            beside = next(iter(self.tensors.values()))
            raise SourceError(f"{beside.origin}: tensor {self.name(name)} is missing, beside {beside.name}")
        types = " or ".join(dtype.value for dtype in dtypes)
        if tensor.dtype not in dtypes:
            raise SourceError(f"{tensor.origin}: tensor {tensor.name} is {tensor.dtype.value}, expected {types}")
        if shapes and tensor.shape not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise SourceError(
                f"{tensor.origin}: tensor {tensor.name} has shape {list(tensor.shape)}, expected {wanted}"
            )
        return tensor

    def matrix(self, name: str, *dtypes: StoredDtype) -> StoredTensor:
        """A tensor of two dimensions. SourceError."""
        tensor = self.take(name, dtypes)
        if len(tensor.shape) != 2 or 0 in tensor.shape:
            raise SourceError(
                f"{tensor.origin}: tensor {tensor.name} has shape {list(tensor.shape)}, expected a matrix"
            )
        return tensor

    def name(self, leaf: str) -> str:
        """Of a tensor, or of the parameter that it is a part of."""
        return ".".join(part for part in (self.path, leaf) if part)


@dataclass(frozen=True)
class Reading:
    """A parameter under its float name. `used`: the module's tensors that it is made of. `floats`: why it is not in
    the numbers that it is stored in, but read as floats; None where it is."""

    tensor: AnyTensor
    used: frozenset[str]
    floats: str | None = None


def rows_f32(tensor: StoredTensor, rows: Rows | None = None) -> F32:
    """Rows of a tensor, whatever floats it holds."""
    return floats(tensor.bits(rows), tensor.dtype)


def columns_f32(tensor: StoredTensor, rows: Rows) -> F32:
    """Columns [start, stop) of a matrix as rows."""
    return floats(np.ascontiguousarray(columns(tensor, rows).T), tensor.dtype)


def columns(tensor: StoredTensor, rows: Rows) -> npt.NDArray[Any]:
    """Columns [start, stop) of a matrix, of which nothing else is read: the whole is a view of the mapped file."""
    return tensor.bits()[:, rows[0] : rows[1]]
