"""Attention kernels that are built and checked for every target: of each register layout one."""

from __future__ import annotations

from llmc.codegen.cuda.attention.layer import Layer
from llmc.codegen.cuda.attention.params import CombineAttentionParams, DecodeAttentionParams, PrefillAttentionParams
from llmc.codegen.cuda.kernel import KernelParams
from llmc.ir.types import DType

_LAYERS = (
    Layer(DType.BF16, 9, 3, 64, 64, 128),
    Layer(DType.F16, 32, 8, 128, 128, 128),
    Layer(DType.BF16, 32, 8, 128, 128, 64, window=4096, sinks=True),
    Layer(DType.BF16, 8, 4, 256, 256, 64, window=1024, softcap=True),
    Layer(DType.BF16, 24, 2, 192, 128, 64),
    Layer(DType.F16, 71, 1, 80, 96, 128, chunk=8192, alibi=True),
)
ATTENTION: tuple[KernelParams, ...] = tuple(
    p
    for layer in _LAYERS
    for p in (
        PrefillAttentionParams(layer, layer.dtype),
        DecodeAttentionParams(layer),
        CombineAttentionParams(layer, DType.F32),
    )
)
