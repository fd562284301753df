"""A packed linear -> its launch: a kernel for each size of bucket, all with one arithmetic."""

from __future__ import annotations

import llmc.runtime.cuda.plan as plan
from llmc.codegen.buffers import row_symbol
from llmc.codegen.cuda.linear.params import COUNTERS, PARTIALS, CountedBy
from llmc.codegen.cuda.linear.variants import LinearVariant, tile_name, variants
from llmc.codegen.cuda.plan.launches import Call, Scope
from llmc.codegen.hazards import scratch_span
from llmc.codegen.preference import Preference
from llmc.ir.formats import Packed, WeightLayout
from llmc.ir.graph import IRError, Node
from llmc.ir.ops.kernel import PackedLinear


def linear_call(node: Node, op: PackedLinear, scope: Scope) -> Call:
    """IRError when the epilogue has no CUDA code, and for a weight in another order than kernels read."""
    weight = node.inputs[1].tensor
    if not isinstance(weight.layout, Packed) or weight.layout.order is not WeightLayout.ROWS:
        raise IRError(f"{weight} is not in rows, which CUDA kernels read: leave layout out of lower-linears")
    _, k = weight.static_shape()
    rows = row_symbol(node.output.tensor)
    counted = CountedBy.ROWS if rows == "R" else CountedBy.TOKENS
    found = variants(op, node.output.tensor.static_row_width(), k, scope.target, counted)
    smaller = [v for v in found if v.up_to is not None and v.up_to < scope.most[rows]]
    found = found[: len(smaller) + 1]  # no step is larger than what the first of the others serves
    splits = any(v.params.is_split for v in found)
    spans = [scratch_span(s.name) for s in (PARTIALS, COUNTERS)] if splits else []

    def kernel(found: LinearVariant) -> plan.Variant:
        params = found.params
        tiles = (plan.Factor(rows, params.tile.tokens),)
        out_tiles, _, slices = params.grid(1)
        grid = (plan.Extent(out_tiles), plan.Extent(1, tiles), plan.Extent(slices))
        scratch = {}
        if params.is_split:
            scratch = {
                PARTIALS: plan.Extent(params.workspace_bytes(1), tiles),
                COUNTERS: plan.Extent(4 * params.num_counters(1), tiles),
            }
        variant = scope.variant(node, params, grid, up_to=found.up_to, scratch=scratch)
        scope.kernels.prefer(_preference(found, rows, variant.kernel))
        return variant

    return scope.call(node, rows, [kernel(v) for v in found], scope.values.access(node, spans))


def _preference(found: LinearVariant, rows: str, symbol: str) -> Preference:
    shape = found.params.shape
    size = f"{shape.width}x{shape.k}{' gated' * shape.gated}"
    of = f"{size}, {rows} ≤ {found.up_to}" if found.up_to is not None else f"{size}, any {rows}"
    return Preference("packed_linear", of, tile_name(found.params), found.why, found.rejected, (symbol,))
