"""The kernels this project builds and tests for a target: one representative configuration of each
variant."""

from __future__ import annotations

from llmc.codegen.cuda.attention import DecodeAttentionParams, PrefillAttentionParams, RopeAppendParams
from llmc.codegen.cuda.gemm import GemmParams, HopperGemmParams, SkinnyGemmParams
from llmc.codegen.cuda.kernel import Epilogue, KernelParams
from llmc.codegen.cuda.linear_catalog import LINEARS
from llmc.codegen.cuda.rms_norm import RmsNormParams
from llmc.codegen.cuda.target import CudaTarget

ALL: tuple[KernelParams, ...] = (
    RmsNormParams(576, 128, False),
    RmsNormParams(576, 128, True),
    RmsNormParams(4096, 256, True),
    *[GemmParams(128, 128, 2, 2, 3, e) for e in Epilogue],
    GemmParams(64, 64, 2, 2, 4, Epilogue.NONE),
    *[HopperGemmParams(128, 4, e) for e in Epilogue],
    HopperGemmParams(256, 4, Epilogue.NONE),
    *[SkinnyGemmParams(4, 4, e) for e in Epilogue],
    SkinnyGemmParams(1, 1, Epilogue.NONE),
    SkinnyGemmParams(8, 2, Epilogue.RESIDUAL),
    *LINEARS,
    DecodeAttentionParams(64, 3, 16, 256),
    DecodeAttentionParams(128, 4, 16, 256),
    PrefillAttentionParams(64, 3, 16),
    PrefillAttentionParams(128, 4, 16),
    RopeAppendParams(64, 16),
)


def for_target(target: CudaTarget) -> list[KernelParams]:
    return [p for p in ALL if p.rejects(target) is None]
