"""A packed linear -> its launch: a kernel for each size of bucket, all with one arithmetic."""

from __future__ import annotations

import llmc.runtime.cuda.plan as plan
from llmc.codegen.cuda.linear.params import SWIZZLE, Argument, ArgumentKind, CountedBy, LinearParams
from llmc.codegen.cuda.linear.variants import Variant, tile_name, variants
from llmc.codegen.cuda.plan.edges import Access
from llmc.codegen.cuda.plan.launches import COUNTS, Call, Scope, scratch_span
from llmc.codegen.preference import Preference
from llmc.ir.graph import Node
from llmc.ir.ops.kernel import PackedLinear

PARTIALS, COUNTERS = "linear_partials", "linear_counters"


def linear_call(node: Node, op: PackedLinear, scope: Scope) -> Call:
    """IRError when the epilogue has no CUDA code."""
    x, w, *extras = node.inputs
    _, k = w.tensor.static_shape()
    rows = scope.symbol(node.output)
    counted = CountedBy.ROWS if rows == "R" else CountedBy.TOKENS
    found = variants(op, node.output.tensor.static_row_width(), k, scope.target, counted)
    smaller = [v for v in found if v.up_to is not None and v.up_to < scope.most[rows]]
    found = found[: len(smaller) + 1]  # no step is larger than what the first of the others serves
    splits = any(v.params.is_split for v in found)
    spans = (scratch_span(PARTIALS), scratch_span(COUNTERS)) if splits else ()

    def argument(a: Argument, params: LinearParams) -> plan.Argument:
        match a.kind:
            case ArgumentKind.X | ArgumentKind.WEIGHT:
                value, height = (x, None) if a.kind is ArgumentKind.X else (w, params.shape.weight_rows)
                box = None
                if a.box is not None:
                    dtype = params.shape.dtype.value
                    box = plan.Box(dtype, height, params.shape.k, params.row_bytes, *a.box, SWIZZLE)
                return scope.argument(value, box)
            case ArgumentKind.COUNTS:
                return COUNTS
            case ArgumentKind.EXTRA:
                assert a.extra is not None
                return scope.argument(extras[a.extra])
            case ArgumentKind.OUT:
                return scope.argument(node.output)
            case ArgumentKind.WORKSPACE:
                return plan.Argument("scratch", PARTIALS)
            case ArgumentKind.COUNTERS:
                return plan.Argument("scratch", COUNTERS)

    def kernel(found: Variant) -> plan.Variant:
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
        arguments = tuple(argument(a, params) for a in params.arguments)
        variant = scope.variant(params, grid, arguments, found.up_to, scratch)
        scope.kernels.prefer(_preference(found, rows, variant.kernel))
        return variant

    access = Access(scope.spans(node.inputs), (*scope.spans(node.outputs), *spans))
    return scope.call(node, rows, tuple(kernel(v) for v in found), access)


def _preference(found: Variant, rows: str, symbol: str) -> Preference:
    shape = found.params.shape
    size = f"{shape.width}x{shape.k}{' gated' * shape.gated}"
    of = f"{size}, {rows} ≤ {found.up_to}" if found.up_to is not None else f"{size}, any {rows}"
    return Preference("packed_linear", of, tile_name(found.params), found.why, found.rejected, (symbol,))
