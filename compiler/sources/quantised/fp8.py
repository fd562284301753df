"""Weights in fp8 e4m3 with a scale for the tensor, each row or blocks: DeepSeek's and Qwen's fp8, MXFP8, FBGEMM's.

A weight is code * scale, whatever the tensor of scales is called.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmc.compiler.sources.checkpoint import Rows, StoredDtype, StoredTensor
from llmc.compiler.sources.quantised.elements import F32
from llmc.compiler.sources.quantised.kept import kept, scale_type
from llmc.compiler.sources.quantised.module import FLOATS, Module, Reading, rows_f32
from llmc.compiler.sources.quantised.stated import Stated
from llmc.ir.formats import Numbers, Part
from llmc.ir.types import DType

_SCALES = (*FLOATS, StoredDtype.F8_E8M0, StoredDtype.U8)
Block = tuple[int, int]  # rows and columns that share a scale


@dataclass(frozen=True)
class Fp8:
    """`scale`: what the tensor of scales is called, or `older`. `block`: None for one scale to the tensor or a row."""

    title: str
    scale: str
    block: Block | None = None
    older: str | None = None

    @staticmethod
    def finegrained(stated: Stated) -> Fp8:
        """transformers' fp8 and mxfp8. SourceError for blocks that are none."""
        if (fmt := stated.get("fmt", default="e4m3")) != "e4m3":
            raise stated.refusal(f"weights in fp8 {fmt} are not supported: expected e4m3")
        if stated.method == "mxfp8":
            return Fp8("MXFP8", "weight_scale_inv", (1, 32))
        block = stated_block(stated, stated.settings.get("weight_block_size"))
        return Fp8("fp8", "weight_scale_inv", block, older="weight_scale")  # AutoFP8's

    @staticmethod
    def fbgemm(stated: Stated) -> Fp8:
        return Fp8("FBGEMM fp8", "weight_scale")

    def read(self, module: Module) -> Reading | None:
        tensor = module.tensors.get("weight")
        if tensor is None or tensor.dtype is not StoredDtype.F8_E4M3:
            return None
        scale = self.older if self.older is not None and self.older in module else self.scale
        return read_fp8(module, scale, self.block)


def stated_block(stated: Stated, block: object) -> Block | None:
    """Rows and columns of a block. SourceError."""
    if block is None:
        return None
    if isinstance(block, list) and len(block) == 2 and all(isinstance(b, int) and b > 0 for b in block):
        return (block[0], block[1])
    raise stated.refusal(f"weights in blocks of {block!r}: expected rows and columns, as [128, 128]")


def read_fp8(module: Module, scale: str, block: Block | None) -> Reading:
    """`weight`, in fp8, with the scales of that name."""
    weight = module.matrix("weight", StoredDtype.F8_E4M3)
    n, k = weight.shape
    scales = module.take(scale, _SCALES, *scale_shapes((n, k), block))
    group = block[1] if block else 0
    parts = {Part.DATA: weight.bits, Part.SCALE: lambda rows: block_scales(scales, rows, block)}
    numbers = Numbers(DType.F8_E4M3, group, scale_type(scales.dtype, group))
    return kept(module, ("weight", scale), (n, k), numbers, parts)


def scale_shapes(shape: tuple[int, int], block: Block | None) -> list[tuple[int, ...]]:
    """Those that the scales of a matrix can have: of the tensor or of its rows, where there are no blocks."""
    n, k = shape
    if block is None:
        return [(), (1,), (1, 1), (n, 1), (n,)]
    return [(-(-n // block[0]), -(-k // block[1]))]


def block_scales(scales: StoredTensor, rows: Rows, block: Block | None) -> F32:
    """Of rows [start, stop), [rows, groups]: a scale that rows share is repeated for each of them."""
    start, stop = rows
    if block is not None:
        found = rows_f32(scales, (start // block[0], -(-stop // block[0])))
        return found[np.arange(start, stop) // block[0] - start // block[0]]
    if np.prod(scales.shape, dtype=int) == 1:
        return np.full((stop - start, 1), rows_f32(scales).reshape(()), np.float32)
    return rows_f32(scales, rows).reshape(-1, 1)
