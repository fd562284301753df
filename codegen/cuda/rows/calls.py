"""A `rows` node -> its launch."""

from __future__ import annotations

import llmc.runtime.cuda.plan as plan
from llmc.codegen.cuda.plan.edges import Access
from llmc.codegen.cuda.plan.launches import COUNTS, Call, Scope, slot_span
from llmc.codegen.cuda.rows.kernel import Argument, ArgumentKind, write_rows
from llmc.codegen.kv_groups import KvGroups
from llmc.ir.graph import Node
from llmc.ir.ops.attention import KvWrite
from llmc.ir.ops.kernel import Rows


def rows_call(node: Node, op: Rows, scope: Scope, kv: KvGroups) -> Call:
    """One block per row. IRError names a node of the body that has no CUDA code."""
    packed = [inner for inner, outer in zip(op.body.inputs, node.inputs, strict=True) if scope.is_step_array(outer)]
    params = write_rows(op.body, packed)
    writes = [n.op for n in op.body.nodes if isinstance(n.op, KvWrite)]
    places = [kv.places[w.slot] for w in writes]

    def argument(a: Argument) -> plan.Argument:
        match a.kind:
            case ArgumentKind.INPUT:
                return scope.argument(node.inputs[a.index])
            case ArgumentKind.OUTPUT:
                return scope.argument(node.outputs[a.index])
            case ArgumentKind.COUNTS:
                return COUNTS
            case ArgumentKind.KV_POOL:
                return plan.Argument("kv", str(places[a.index].group))
            case ArgumentKind.KV_BLOCK_BYTES:
                return plan.Argument("i64", value=kv.groups[places[a.index].group].block_bytes)
            case ArgumentKind.KV_OFFSET:
                return plan.Argument("i64", value=places[a.index].offset)
            case ArgumentKind.BLOCK_TABLES:
                return plan.Argument("input", f"tables.{places[a.index].group}")

    rows = {"tokens": "T", "rows": "R"}[params.counter]
    variant = scope.variant(params, [plan.Extent(1, (plan.Factor(rows, 1),))], [argument(a) for a in params.arguments])
    written = (*scope.spans(node.outputs), *(slot_span(w.slot) for w in writes))
    return scope.call(node, rows, [variant], Access(scope.spans(node.inputs), written))
