"""torchao as transformers saves it to safetensors: tensors of a parameter, and in the file's metadata what of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmc.compiler.sources.checkpoint import StoredDtype
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.quantised.elements import nibbles
from llmc.compiler.sources.quantised.fp8 import Block, block_scales, scale_shapes
from llmc.compiler.sources.quantised.kept import Array, Integers, kept, scale_type
from llmc.compiler.sources.quantised.module import FLOATS, Module, Reading, columns_f32
from llmc.compiler.sources.quantised.stated import Stated
from llmc.ir.formats import Numbers, Part
from llmc.ir.types import DType

_PREFIX = "_weight_"
_DATA, _SCALE, _ZERO = "_weight_qdata", "_weight_scale", "_weight_zero_point"
_TYPES = ("Int8Tensor", "IntxUnpackedToInt8Tensor", "Int4Tensor", "Float8Tensor")


@dataclass(frozen=True)
class TorchAo:
    title = "torchao"

    @staticmethod
    def of(stated: Stated) -> TorchAo:
        return TorchAo()

    def read(self, module: Module) -> Reading | None:
        if not any(name.startswith(_PREFIX) for name in module.tensors):
            return None
        kind, facts = _made(module)
        if "_weight_act_pre_scale" in module or "_weight_per_tensor_scale" in module:
            raise SourceError(f"metadata of {module.name('weight')}: scales of its input are not supported")
        if kind == "Int4Tensor":
            return _int4(module, facts)
        block = _block(module, facts)
        if kind == "Float8Tensor":
            return _fp8(module, block)
        return _integers(module, block, 4 if "int4" in str(facts.get("target_dtype")) else 8)


def _made(module: Module) -> tuple[str, dict[str, Any]]:
    """The class of a weight and its attributes. SourceError."""
    name = module.name("weight")
    try:
        stated = json.loads(module.metadata[name])
        kind, facts = str(stated["_type"]), dict(stated["_data"])
    except (KeyError, ValueError, TypeError):
        beside = next(iter(module.tensors.values()))
        raise SourceError(f"{beside.origin}: the metadata does not say what {beside.name} is a part of") from None
    if kind not in _TYPES:
        raise SourceError(f"metadata of {name}: torchao's {kind} is not supported: expected {' or '.join(_TYPES)}")
    target = facts.get("target_dtype")
    if kind == "IntxUnpackedToInt8Tensor" and not any(f"int{bits}" in str(target) for bits in (4, 8)):
        raise SourceError(f"metadata of {name}: {target} is not supported: expected int4 or int8")
    return kind, facts


def _block(module: Module, facts: dict[str, Any]) -> Block | None:
    """Rows and columns that share a scale; None where whole rows or the tensor do."""
    block = facts.get("block_size")
    if not isinstance(block, list) or len(block) != 2 or not all(isinstance(b, int) and b > 0 for b in block):
        raise SourceError(f"metadata of {module.name('weight')}: block_size is {block!r}, expected rows and columns")
    width = module.take(_DATA, (StoredDtype.I8, StoredDtype.F8_E4M3)).shape[-1]
    return None if block[1] >= width else (block[0], block[1])


def _integers(module: Module, block: Block | None, bits: int) -> Reading:
    data = module.matrix(_DATA, StoredDtype.I8)
    shape = (data.shape[0], data.shape[1])
    scales = module.take(_SCALE, FLOATS, *scale_shapes(shape, block))
    group = block[1] if block else 0
    used, shifts = [_DATA, _SCALE], None
    if _ZERO in module:
        points = module.take(_ZERO, (StoredDtype.I8,), scales.shape)
        used.append(_ZERO)

        def shifts(rows: tuple[int, int]) -> Array:
            return -points.bits(rows).reshape(rows[1] - rows[0], -1).astype(np.int16)

    grid = Integers(
        bits,
        shape,
        group,
        scale_type(scales.dtype, group),
        data.bits,
        lambda rows: block_scales(scales, rows, block),
        shifts,
    )
    return grid.reading(module, *used)


def _int4(module: Module, facts: dict[str, Any]) -> Reading:
    """Signed codes, low half first; a weight is code * scale + zero, both [groups, N], as fbgemm's kernels have it."""
    packed = module.matrix(_DATA, StoredDtype.U8, StoredDtype.I8)
    n, k = packed.shape[0], 2 * packed.shape[1]
    block = _int4_group(module, facts, k)
    scale, zero = (module.take(name, FLOATS, (-(-k // block), n)) for name in (_SCALE, _ZERO))
    group = block if block < k else 0

    def signed(rows: tuple[int, int]) -> Array:
        return (nibbles(packed.bits(rows).view(np.uint8)) ^ 8).astype(np.int8) - np.int8(8)

    used = (_DATA, _SCALE, _ZERO)
    parts = {Part.DATA: signed, Part.SCALE: lambda rows: columns_f32(scale, rows)}
    if not columns_f32(zero, (0, n)).any():
        return kept(module, used, (n, k), Numbers(DType.I4, group, scale_type(scale.dtype, group)), parts)
    parts[Part.DATA] = lambda rows: nibbles(packed.bits(rows).view(np.uint8)) ^ 8
    parts[Part.OFFSET] = lambda rows: columns_f32(zero, rows) - np.float32(8) * columns_f32(scale, rows)
    return kept(module, used, (n, k), Numbers(DType.U4, group, DType.F32, DType.F32), parts)


def _int4_group(module: Module, facts: dict[str, Any], k: int) -> int:
    block = facts.get("block_size")
    if not isinstance(block, list) or len(block) != 2 or block[0] != 1 or not isinstance(block[1], int):
        raise SourceError(f"metadata of {module.name('weight')}: block_size is {block!r}, expected [1, columns]")
    return k if block[1] < 1 else min(block[1], k)


def _fp8(module: Module, block: Block | None) -> Reading:
    data = module.matrix(_DATA, StoredDtype.F8_E4M3)
    shape = (data.shape[0], data.shape[1])
    scales = module.take(_SCALE, FLOATS, *scale_shapes(shape, block))
    group = block[1] if block else 0
    parts = {Part.DATA: data.bits, Part.SCALE: lambda rows: block_scales(scales, rows, block)}
    numbers = Numbers(DType.F8_E4M3, group, scale_type(scales.dtype, group))
    return kept(module, (_DATA, _SCALE), shape, numbers, parts)
