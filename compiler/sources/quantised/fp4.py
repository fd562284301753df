"""Weights in fp4 e2m1, two to a byte, low half first: MXFP4 with powers of two for 32 columns, NVFP4 with fp8 for
16."""

from __future__ import annotations

import numpy as np

from llmc.compiler.sources.checkpoint import StoredDtype
from llmc.compiler.sources.quantised.elements import F32, nibbles
from llmc.compiler.sources.quantised.kept import ReadRows, kept
from llmc.compiler.sources.quantised.module import Module, Reading, rows_f32
from llmc.ir.formats import Numbers, Part
from llmc.ir.types import DType

_MX = 32
_NV = 16


def read_mxfp4(module: Module, data: str, scale: str) -> Reading:
    """Scales in E8M0: 2 ** (byte - 127)."""
    packed = module.matrix(data, StoredDtype.U8)
    n, k = packed.shape[0], 2 * packed.shape[1]
    scales = module.take(scale, (StoredDtype.U8, StoredDtype.F8_E8M0), (n, -(-k // _MX)))
    parts: dict[Part, ReadRows] = {
        Part.DATA: lambda rows: nibbles(packed.bits(rows)),
        Part.SCALE: lambda rows: rows_f32(scales, rows),
    }
    return kept(module, (data, scale), (n, k), Numbers(DType.F4_E2M1, _MX, DType.BF16), parts)


def read_nvfp4(module: Module, data: str, scale: str, of_tensor: str | None = None) -> Reading:
    """A weight is code * (scale * the tensor's own scale) where that has the name `of_tensor` (ModelOpt), else
    code * (scale / `weight_global_scale`) (compressed-tensors)."""
    packed = module.matrix(data, StoredDtype.U8)
    n, k = packed.shape[0], 2 * packed.shape[1]
    scales = module.take(scale, (StoredDtype.F8_E4M3,), (n, -(-k // _NV)))
    whole = module.take(of_tensor or "weight_global_scale", (StoredDtype.F32,), (), (1,))
    factor = np.float32(rows_f32(whole).reshape(()))

    def scale_rows(rows: tuple[int, int]) -> F32:
        found = rows_f32(scales, rows)
        return found * factor if of_tensor else np.divide(found, factor)

    parts: dict[Part, ReadRows] = {Part.DATA: lambda rows: nibbles(packed.bits(rows)), Part.SCALE: scale_rows}
    return kept(module, (data, scale, whole.name.rpartition(".")[2]), (n, k), Numbers(DType.F4_E2M1, _NV), parts)
