"""Formats that weights are published in, and what a build makes of each: the rows of docs/formats.md.

A test of each row reads such a checkpoint, or is refused (tests/sources/quantised for HuggingFace's,
tests/sources/test_gguf_blocks.py for GGUF's).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gguf

from llmc.compiler.sources.gguf.blocks import FORMATS
from llmc.ir.formats import Numbers
from llmc.ir.types import DType


@dataclass(frozen=True)
class Published:
    """A format of a source. `numbers`: what linears multiply, without rounding again; None: `instead` says why it is
    read as floats, or refused."""

    source: str
    form: str
    numbers: Numbers | None
    instead: str = ""
    refused: bool = False


def _kept(source: str, form: str, element: DType, group: int, *beside: DType) -> Published:
    """`beside`: the types of scales and offsets."""
    return Published(source, form, Numbers(element, group, *beside))


def _floats(source: str, form: str, why: str) -> Published:
    return Published(source, form, None, why)


def _refused(source: str, form: str, why: str) -> Published:
    return Published(source, form, None, why, refused=True)


_I4, _U4, _I8, _F8, _FP4 = DType.I4, DType.U4, DType.I8, DType.F8_E4M3, DType.F4_E2M1
_F32, _F16, _BF16 = DType.F32, DType.F16, DType.BF16
_GPTQ, _AWQ, _CT, _AO = "GPTQ", "AWQ", "compressed-tensors", "torchao"
_LAYOUT = "the layout is not read"

HUGGINGFACE = (
    _kept(_GPTQ, "4 bits, symmetric", _I4, 128, _F16),
    _kept(_GPTQ, "4 bits, symmetric, whole rows", _I4, 0, _F32),
    _kept(_GPTQ, "4 bits, zero points", _U4, 128, _F16, _I8),
    _kept(_GPTQ, "4 bits, zero points, gptq_v2", _U4, 128, _F16, _I8),
    _kept(_GPTQ, "8 bits, symmetric", _I8, 128, _F16),
    _kept(_GPTQ, "8 bits, zero points", _I8, 128, _F16, _I8),
    _kept(_GPTQ, "8 bits, zero points of 0, gptq_v2", _I8, 128, _F32, _F32),
    _floats(_GPTQ, "act order", "groups are no neighbours in a row"),
    _refused(_GPTQ, "2 or 3 bits", "expected 4 or 8 bits"),
    _refused(_GPTQ, "marlin and other layouts", _LAYOUT),
    _kept(_AWQ, "4 bits, gemm", _U4, 128, _F16, _I8),
    _kept(_AWQ, "4 bits, gemm, whole rows", _U4, 0, _F32, _I8),
    _refused(_AWQ, "gemv, marlin and other layouts", _LAYOUT),
    _kept("AutoRound", "packed as GPTQ", _I4, 128, _F16),
    _kept("AutoRound", "packed as AWQ", _U4, 128, _F16, _I8),
    _refused("AutoRound", "its own packing", _LAYOUT),
    _kept(_CT, "4 bits, symmetric", _I4, 64, _BF16),
    _kept(_CT, "4 bits, zero points", _U4, 64, _BF16, _I8),
    _kept(_CT, "4 bits, channels", _I4, 0, _F32),
    _kept(_CT, "8 bits, symmetric", _I8, 64, _BF16),
    _kept(_CT, "int8, channels (W8A8)", _I8, 0, _F32),
    _kept(_CT, "int8, channels, zero points", _I8, 0, _F32, _I8),
    _kept(_CT, "fp8, tensor", _F8, 0, _F32),
    _kept(_CT, "fp8, channels", _F8, 0, _F32),
    _kept(_CT, "fp8, blocks", _F8, 128, _BF16),
    _kept(_CT, "MXFP4", _FP4, 32, _BF16),
    _kept(_CT, "NVFP4", _FP4, 16, _F32),
    _floats(_CT, "order of activation", "groups are no neighbours in a row"),
    _refused(_CT, "sparsity, transforms", _LAYOUT),
    _kept("fp8", "blocks of 128x128 (DeepSeek, Qwen)", _F8, 128, _F32),
    _kept("fp8", "tensor", _F8, 0, _F32),
    _kept("fp8", "tensor (AutoFP8)", _F8, 0, _F32),
    _kept("MXFP8", "blocks of 32", _F8, 32, _BF16),
    _kept("FBGEMM fp8", "channels", _F8, 0, _F32),
    _kept("ModelOpt", "FP8", _F8, 0, _F32),
    _kept("ModelOpt", "NVFP4", _FP4, 16, _F32),
    _floats("MXFP4", "experts (gpt-oss)", "experts are one parameter of three dimensions"),
    _kept("bitsandbytes", "int8", _I8, 0, _F32),
    _floats("bitsandbytes", "nf4", "its values are no integers"),
    _floats("bitsandbytes", "fp4", "its values are no integers"),
    _kept(_AO, "Int8Tensor", _I8, 0, _F32),
    _kept(_AO, "Int4Tensor", _U4, 64, _F32, _F32),
    _kept(_AO, "Int4Tensor, symmetric", _I4, 64, _BF16),
    _kept(_AO, "IntxUnpackedToInt8Tensor, int4", _I4, 32, _BF16),
    _kept(_AO, "IntxUnpackedToInt8Tensor, int8, zero points", _I8, 32, _BF16, _I8),
    _kept(_AO, "Float8Tensor", _F8, 0, _F32),
    _refused(_AO, "Int4TilePackedTo4dTensor and others", _LAYOUT),
    _kept("HQQ", "4 bits", _U4, 64, _F32, _F32),
    _kept("HQQ", "8 bits", _I8, 64, _F32, _F32),
    _floats("HQQ", "axis 0", "groups are no neighbours in a row"),
    _refused("HQQ", "1, 2 or 3 bits", "expected 4 or 8 bits"),
)
"""With groups of the commonest size; others are kept alike where linears have them (ir/formats.py)."""


def _gguf() -> Iterator[Published]:
    """Every type of blocks that the gguf package knows."""
    for kind, (block, _) in gguf.GGML_QUANT_SIZES.items():
        if kind in FORMATS:
            yield Published("GGUF", kind.name, FORMATS[kind].numbers)
        elif kind in gguf.quants._type_traits and block > 1:
            yield _floats("GGUF", kind.name, "no numbers that linears are multiplied in")
        elif block > 1:
            yield _refused("GGUF", kind.name, "no weights are published so")


GGUF = tuple(_gguf())
