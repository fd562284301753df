"""Sampling -> its launch."""

from __future__ import annotations

from llmc.codegen.cuda.plan.launches import Call, Scope
from llmc.codegen.cuda.sample.params import EDITED, SampleParams
from llmc.codegen.hazards import scratch_span
from llmc.ir.graph import Node
from llmc.ir.ops.kernel import Sample
from llmc.runtime.cuda.plan import Extent, Factor


def sample_call(node: Node, op: Sample, scope: Scope) -> Call:
    """One block per sampled row."""
    (logits,) = node.inputs
    params = SampleParams(op.num_valid_tokens, logits.tensor.static_row_width())
    rows = scope.symbol(logits)
    each = (Factor(rows, 1),)
    variant = scope.variant(node, params, [Extent(1, each)], scratch={EDITED: Extent(4 * params.row_floats, each)})
    return scope.call(node, rows, [variant], scope.values.access(node, [scratch_span(EDITED.name)]))
