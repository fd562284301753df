"""report.json: what fused and what did not and why, kernels, bytes. Read by `llmc inspect` and by people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from llmc.codegen.package import Facts
from llmc.compiler.capture.capture import Captured
from llmc.compiler.ir.graph import Graph
from llmc.compiler.ir.ops.constant import Weight
from llmc.compiler.sources.model_source import ModelSource
from llmc.passes.rewrite import RuleLog


def build_report(
    facts: Facts, logs: Mapping[str, RuleLog], targets: Mapping[str, Any], source: ModelSource, captured: Captured
) -> dict[str, Any]:
    """Everything a build knows about itself, as plain JSON values. By target: `logs` of the rules that led to its
    kernels, and what its backend reports (compiler/backends.py)."""
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
        "targets": {name: {"rules": _rules(logs[name]), **found} for name, found in targets.items()},
        "limits": {"max_seq_len": facts.limits.max_seq_len, "max_batch": facts.limits.max_batch},
    }


def _rules(log: RuleLog) -> dict[str, Any]:
    return {
        "applied": dict(sorted(log.applied.items())),
        "refused": {name: dict(sorted(where.items())) for name, where in sorted(log.refused.items())},
    }


def launches_of(graph: Graph) -> dict[str, int]:
    """How many launches of each op."""
    return dict(sorted(Counter(n.op.mnemonic() for n in graph.nodes if not isinstance(n.op, Weight)).items()))
