"""bitsandbytes: int8 with the largest of each row, and nf4 and fp4, whose 16 values and block maxima the file holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from llmc.compiler.sources.checkpoint import Rows, StoredDtype, StoredTensor
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.quantised.elements import F32
from llmc.compiler.sources.quantised.kept import kept
from llmc.compiler.sources.quantised.module import Module, Reading, rows_f32
from llmc.compiler.sources.quantised.stated import Stated
from llmc.ir.formats import Numbers, Part
from llmc.ir.types import DType

_STATE = "weight.quant_state.bitsandbytes__"
_OF_127TH = np.float32(7.874015718698502e-3)


@dataclass(frozen=True)
class BitsAndBytes:
    title = "bitsandbytes"

    @staticmethod
    def of(stated: Stated) -> BitsAndBytes:
        return BitsAndBytes()

    def read(self, module: Module) -> Reading | None:
        if "SCB" in module:
            return _int8(module)
        states = [name for name in module.tensors if name.startswith(_STATE)]
        return _in_blocks(module, states[0]) if states else None


def _int8(module: Module) -> Reading:
    weight = module.matrix("weight", StoredDtype.I8)
    n, k = weight.shape
    largest = module.take("SCB", (StoredDtype.F32,), (n,))
    used = ["weight", "SCB"]
    if "weight_format" in module:
        layout = module.take("weight_format", (StoredDtype.U8, StoredDtype.I8), (), (1,))
        if layout.bits().any():  # others are of single kinds of GPUs
            raise SourceError(f"{layout.origin}: tensor {layout.name} is not 0 (row): the layout is not supported")
        used.append("weight_format")
    parts = {Part.DATA: weight.bits, Part.SCALE: lambda rows: rows_f32(largest, rows)[:, None] * _OF_127TH}
    return kept(module, tuple(used), (n, k), Numbers(DType.I8, 0), parts)


@dataclass(frozen=True)
class _State:
    """Of a matrix in blocks of numbers in their order in memory, of rows one after the other."""

    kind: str
    shape: tuple[int, int]
    block: int
    nested_block: int | None
    nested_offset: float


def _in_blocks(module: Module, name: str) -> Reading:
    """Codes two to a byte, high half first; each stands for one of 16 values, times the largest of its block."""
    state = _state(module.take(name, (StoredDtype.U8,)))
    n, k = state.shape
    count = -(-n * k // state.block)
    packed = module.take("weight", (StoredDtype.U8,), (-(-n * k // 2), 1), (1, -(-n * k // 2)))
    values = rows_f32(module.take("weight.quant_map", (StoredDtype.F32,), (16,)))
    nested = state.nested_block is not None
    largest = module.take("weight.absmax", (StoredDtype.U8 if nested else StoredDtype.F32,), (count,))
    used = {name, "weight", "weight.quant_map", "weight.absmax"}
    if nested:
        used |= {"weight.nested_absmax", "weight.nested_quant_map"}

    def read(rows: Rows | None) -> F32:
        start, stop = (row * k for row in rows or (0, n))
        data = packed.bits().reshape(-1)[start // 2 : -(-stop // 2)]
        codes = np.stack([data >> 4, data & 15], -1).reshape(-1)[start % 2 :][: stop - start]
        blocks = (start // state.block, -(-stop // state.block))
        maxima = _nested(module, state, blocks) if nested else rows_f32(largest, blocks)
        spread = np.repeat(maxima, state.block)[start - blocks[0] * state.block :][: stop - start]
        return (values[codes] * spread).reshape(-1, k)

    tensor = StoredTensor(module.name("weight"), StoredDtype.F32, (n, k), f"{packed.origin}:{packed.name}", read)
    return Reading(tensor, frozenset(used), f"{state.kind}: its values are no integers")


def _nested(module: Module, state: _State, blocks: tuple[int, int]) -> F32:
    """Maxima that are quantised themselves: one of 256 values, times the largest of its block, plus their mean."""
    assert state.nested_block is not None
    count = module.tensors["weight.absmax"].shape[0]
    codes = module.tensors["weight.absmax"].bits(blocks)
    of_blocks = module.take("weight.nested_absmax", (StoredDtype.F32,), (-(-count // state.nested_block),))
    values = rows_f32(module.take("weight.nested_quant_map", (StoredDtype.F32,), (256,)))
    block_of = np.arange(*blocks) // state.nested_block
    found = values[codes] * rows_f32(of_blocks)[block_of] + np.float32(state.nested_offset)
    return np.asarray(found, np.float32)


def _state(tensor: StoredTensor) -> _State:
    """The JSON that a tensor of bytes is. SourceError."""
    try:
        said: dict[str, Any] = json.loads(tensor.bits().tobytes())
        n, k = (int(size) for size in said["shape"])
        nested = int(said["nested_blocksize"]) if said.get("nested_blocksize") else None
        kind, block = str(said["quant_type"]), int(said["blocksize"])
        found = _State(kind, (n, k), block, nested, float(said.get("nested_offset") or 0.0))
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise SourceError(f"{tensor.origin}: tensor {tensor.name} is no state of a matrix: {error!r}") from None
    if min(prod(found.shape), block, 1 if nested is None else nested) < 1:
        raise SourceError(f"{tensor.origin}: tensor {tensor.name} states the shape {[n, k]} in blocks of {block}")
    return found
