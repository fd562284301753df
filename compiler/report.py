"""report.json: what fused and what did not and why, kernels, bytes. Read by `llmc inspect` and by people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from llmc.codegen.cpu.linear_kernels import Choice
from llmc.codegen.cpu.model import Model
from llmc.codegen.package import Facts
from llmc.codegen.weights import PlacedWeight
from llmc.compiler.capture.capture import Captured
from llmc.compiler.ir.graph import Graph
from llmc.compiler.ir.ops.constant import Weight
from llmc.compiler.sources.model_source import ModelSource
from llmc.passes.rewrite import RuleLog


def build_report(
    facts: Facts,
    model: Model,
    placed: Sequence[PlacedWeight],
    entries: Sequence[Graph],
    log: RuleLog,
    source: ModelSource,
    captured: Captured,
    linear: Choice,
) -> dict[str, Any]:
    """Everything a build knows about itself, as plain JSON values."""
    return {
        "model": {
            "name": source.name,
            "class": captured.model_class,
            "licence": source.licence,
            "stored_as": source.quantization,
            "ignored_config_keys": list(source.ignored_config_keys),
            "ignored_tensors": list(captured.ignored_tensors),
            "untied_parameters": list(captured.untied),
        },
        "rules": {
            "applied": dict(sorted(log.applied.items())),
            "refused": {name: dict(sorted(where.items())) for name, where in sorted(log.refused.items())},
        },
        "kernels": [
            {
                "op": "packed_linear",
                "chosen": linear.chosen.name,
                "reason": f"{linear.chosen.macs_per_cycle} multiply-adds a cycle and core, at peak",
                "rejected": linear.rejected,
            }
        ],
        "entries": {g.name: _launches(g) for g in entries},
        "bytes": {
            "weights": sum(w.num_bytes for w in placed),
            "kv_per_token": model.kv.layout.bytes_per_token,
            "arena_per_token": model.arena_per_token,
            "arena_per_row": model.arena_per_row,
        },
        "limits": {"max_seq_len": facts.limits.max_seq_len, "max_batch": facts.limits.max_batch},
    }


def _launches(graph: Graph) -> dict[str, int]:
    return dict(sorted(Counter(n.op.mnemonic() for n in graph.nodes if not isinstance(n.op, Weight)).items()))
