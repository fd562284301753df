"""Kernels that work row by row, a block for each row: which op has which, and their launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from llmc.codegen.buffers import row_symbol
from llmc.codegen.cuda.arguments import Scratch
from llmc.codegen.cuda.kernel import KernelParams
from llmc.codegen.cuda.plan.launches import Call, Scope
from llmc.codegen.cuda.rows.kernel import write_rows
from llmc.codegen.cuda.sample.params import SampleParams
from llmc.codegen.hazards import scratch_span
from llmc.ir.graph import IRError, Node, Op, Value
from llmc.ir.ops.kernel import Rows, Sample
from llmc.ir.types import TensorType
from llmc.runtime.cuda.plan import Extent, Factor


class RowParams(KernelParams, Protocol):
    """A kernel of one block per row."""

    @property
    def loads_in_flight(self) -> int: ...  # of 16 bytes, by one thread

    @property
    def scratch(self) -> Mapping[Scratch, int]: ...  # bytes for each row


IsStepArray = Callable[
    [Value], bool
]  # of the node's inputs: is it an array of the step, whose rows stand without gaps?


def _rows(node: Node, is_step_array: IsStepArray) -> RowParams:
    assert isinstance(node.op, Rows)
    pairs = zip(node.op.body.inputs, node.inputs, strict=True)
    return write_rows(node.op.body, [inner for inner, outer in pairs if is_step_array(outer)])


def _sample(node: Node, _: IsStepArray) -> RowParams:
    assert isinstance(node.op, Sample)
    return SampleParams(node.op.num_valid_tokens, node.inputs[0].tensor.static_row_width())


KERNELS: Mapping[type[Op], Callable[[Node, IsStepArray], RowParams]] = {Rows: _rows, Sample: _sample}


def row_kernel(node: Node, is_step_array: IsStepArray) -> RowParams:
    """IRError for an op, or a node of its body, that has no CUDA code; ValueError for what its kernel does not take."""
    if type(node.op) not in KERNELS:
        raise IRError(f"{node.op.mnemonic()} at {node.loc}: not a CUDA kernel")
    return KERNELS[type(node.op)](node, is_step_array)


def counted(node: Node) -> TensorType:
    """Of the value whose rows are those of the launch."""
    types = (v.type for v in (*node.outputs, *node.inputs))
    return next(t for t in types if isinstance(t, TensorType) and t.is_rowed)


def row_call(node: Node, scope: Scope) -> Call:
    params = row_kernel(node, scope.is_step_array)
    rows = row_symbol(counted(node))
    each = (Factor(rows, 1),)
    scratch = {memory: Extent(num_bytes, each) for memory, num_bytes in params.scratch.items()}
    variant = scope.variant(node, params, [Extent(1, each)], scratch=scratch)
    return scope.call(node, rows, [variant], scope.values.access(node, [scratch_span(m.name) for m in scratch]))
