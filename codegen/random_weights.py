"""Weights that nobody trained: random values by shape, in the bytes that kernels read, as fast as a file is written.

Their sizes and their entropy are a model's, so that time and power are; what the model says is noise. Matrices are cut
out of one block of normally distributed values of variance 1 / inputs, which keeps activations near 1 through any depth
behind norms; vectors are near 1, as the weights of norms are. What the module computes itself (rotary frequencies) is
given and true.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from math import prod

import numpy as np
import numpy.typing as npt

from llmc.codegen.packing import bits, stored_bytes
from llmc.codegen.weights import Array, sources, stored, weight_name
from llmc.ir.ops.constant import Origin, Source, WeightExpr
from llmc.ir.types import DType

BLOCK_VALUES = (1 << 20) + 7  # a prime: rows of any width begin at ever other values of the block
_NEAR_ONE = 0.1  # standard deviation of vectors


class RandomWeights:
    """`buffers`: values of the module's own, by name. Safe to use from several threads."""

    def __init__(self, buffers: Mapping[str, Array], seed: int = 0) -> None:
        self._buffers = buffers
        self._block = np.random.default_rng(seed).standard_normal(BLOCK_VALUES, np.float32)
        self._halves: dict[tuple[DType, int], npt.NDArray[np.uint8]] = {}

    def pieces(self, expr: WeightExpr) -> Iterator[npt.NDArray[np.uint8]]:
        """The bytes of a weight as they lie on disk. A matrix in a half format is cut out of a block of such bytes; all
        else is made of random sources as a checkpoint's weights are made of theirs."""
        type_ = expr.type
        matrix = type_.rank == 2 and type_.dtype in (DType.BF16, DType.F16)
        trained = all(s.origin is Origin.PARAMETER for s in sources(expr))
        if matrix and trained and stored_bytes(type_) == 2 * prod(type_.static_shape()):  # no padding, which is zero
            yield from self._cut(weight_name(expr), type_.dtype, type_.static_shape()[1], stored_bytes(type_))
        else:
            yield from stored(expr, self)

    def read(self, source: Source, rows: tuple[int, int] | None) -> Array:
        """Values of a source, float32 unless it is a buffer; any rows are those of the whole."""
        if source.origin is Origin.BUFFER:
            values = self._buffers[source.name]
            return np.asarray(values if rows is None else values[rows[0] : rows[1]])
        begin, end = rows if rows is not None else (0, source.shape[0] if source.shape else 1)
        row = prod(source.shape[1:])
        at = (_start(source.name) + np.arange(begin * row, end * row)) % BLOCK_VALUES
        values = self._block[at]
        spread = 1 + _NEAR_ONE * values if len(source.shape) < 2 else values / np.sqrt(np.float32(row))
        return spread.astype(np.float32).reshape((end - begin, *source.shape[1:]) if source.shape else ())

    def _cut(self, name: str, dtype: DType, inputs: int, num_bytes: int) -> Iterator[npt.NDArray[np.uint8]]:
        block = self._half(dtype, inputs)
        at = 2 * _start(name)
        while num_bytes:
            piece = block[at : at + num_bytes]
            yield piece
            num_bytes -= piece.size
            at = 0

    def _half(self, dtype: DType, inputs: int) -> npt.NDArray[np.uint8]:
        """The block as bytes of bf16 or f16. Two threads may make the same one at a time: either will do."""
        key = dtype, inputs
        if key not in self._halves:
            values = self._block / np.sqrt(np.float32(inputs))
            self._halves[key] = bits(values, dtype).view(np.uint8)
        return self._halves[key]


def _start(name: str) -> int:
    """Where in the block the values of this name begin."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") % BLOCK_VALUES
