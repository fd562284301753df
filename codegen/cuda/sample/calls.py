"""Sampling -> its launch."""

from __future__ import annotations

from llmc.codegen.cuda.plan.edges import Access
from llmc.codegen.cuda.plan.launches import COUNTS, Call, Scope, scratch_span
from llmc.codegen.cuda.sample.params import SampleParams
from llmc.ir.graph import Node
from llmc.ir.ops.kernel import Sample
from llmc.runtime.cuda.plan import Argument, Extent, Factor


def sample_call(node: Node, op: Sample, scope: Scope) -> Call:
    """One block per sampled row."""
    (logits,) = node.inputs
    params = SampleParams(op.num_valid_tokens, logits.tensor.static_row_width())
    rows = scope.symbol(logits)
    scratch = {
        name: Extent(4 * params.row_floats, (Factor(rows, 1),)) for kind, name in params.ARGUMENTS if kind == "scratch"
    }

    def argument(kind: str, name: str) -> Argument:
        if kind == "buffer":
            return scope.argument(logits)
        return COUNTS if name == "counts" else Argument(kind, name)

    arguments = [argument(kind, name) for kind, name in params.ARGUMENTS]
    variant = scope.variant(params, [Extent(1, (Factor(rows, 1),))], arguments, scratch=scratch)
    spans = tuple(scratch_span(name) for name in scratch)
    return scope.call(node, rows, [variant], Access(scope.spans(node.inputs), (*scope.spans(node.outputs), *spans)))
