"""A tensor of a GGUF file, as it lies there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

Taken = slice | NDArray[np.intp]
"""Rows of the first axis."""
ALL = slice(None)


@dataclass(frozen=True)
class GgufTensor:
    """`data`: of blocks the bytes, row by row; mapped, not read."""

    file: Path
    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    data: NDArray[Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, file: Path, found: gguf.ReaderTensor) -> GgufTensor:
        shape = tuple(int(dim) for dim in reversed(found.shape))  # ggml counts from the fastest dimension
        return cls(file, found.name, found.tensor_type, shape, found.data)

    def dequantise(self, rows: Taken = ALL) -> NDArray[np.float32]:
        values: NDArray[np.float32] = gguf.dequantize(self.data[rows], self.kind)
        return values.astype(np.float32, copy=False)
