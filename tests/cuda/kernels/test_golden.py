"""Sources of two kernels to the letter: one that is written loop by loop, one that binds a template."""

from __future__ import annotations

from llmc.codegen.cuda.kernel import render
from tests.cuda.harness import SYMBOL
from tests.cuda.kernels import rows_examples
from tests.cuda.kernels.linear_shapes import S, mma
from tests.golden import Golden


def test_a_rows_kernel(golden: Golden) -> None:
    golden(render(rows_examples.kernel(rows_examples.rms_norm_bf16(576)), SYMBOL), "rms_norm_bf16.cu")


def test_a_linear_s_binder(golden: Golden) -> None:
    golden(render(mma("swiglu", 96, 64, 64, 64, 8, S, 2), SYMBOL), "swiglu.cu")
