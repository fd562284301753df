"""The kernels this project builds and tests for a target: one representative configuration of each
variant."""

from __future__ import annotations

from attention_catalog import ATTENTION
from linear_catalog import LINEARS
from rows_examples import examples

from llmc.codegen.cuda.kernel import KernelParams
from llmc.codegen.cuda.sample.params import SampleParams
from llmc.codegen.cuda.target.capabilities import CudaTarget

ALL: tuple[KernelParams, ...] = (
    *examples(),
    *LINEARS,
    *ATTENTION,
    SampleParams(49152, 49152),
    SampleParams(128256, 128256),
)


def for_target(target: CudaTarget) -> list[KernelParams]:
    return [p for p in ALL if p.rejects(target) is None]
