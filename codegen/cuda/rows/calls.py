"""A `rows` node -> its launch."""

from __future__ import annotations

from llmc.codegen.cuda.plan.launches import Call, Scope
from llmc.codegen.cuda.rows.kernel import write_rows
from llmc.ir.graph import Node
from llmc.ir.ops.kernel import Rows
from llmc.runtime.cuda.plan import Extent, Factor


def rows_call(node: Node, op: Rows, scope: Scope) -> Call:
    """One block per row. IRError names a node of the body that has no CUDA code."""
    packed = [inner for inner, outer in zip(op.body.inputs, node.inputs, strict=True) if scope.is_step_array(outer)]
    params = write_rows(op.body, packed)
    rows = {"tokens": "T", "rows": "R"}[params.counter]
    variant = scope.variant(node, params, [Extent(1, (Factor(rows, 1),))])
    return scope.call(node, rows, [variant], scope.values.access(node))
