"""Ops with a row-by-row kernel of their own: each has one for GPUs, and takes no other way to a launch."""

from __future__ import annotations

import pytest

from llmc.codegen.cuda.row_kernels import KERNELS, row_kernel
from llmc.ir.graph import IRError, Node
from llmc.ir.ops.kernel import QuantizeRows, RowKernel, Rows, Sample


def test_every_op_has_its_kernel() -> None:
    assert set(KERNELS) == RowKernel.all() | {Rows}
    assert Sample in RowKernel.all()


def test_what_has_none_is_named() -> None:
    with pytest.raises(IRError, match=r"quantize_rows at layers\.0: not a CUDA kernel"):
        row_kernel(Node(QuantizeRows(64), (), (), "layers.0"), lambda _: False)
