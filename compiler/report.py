"""report.json: what fused and what did not and why, kernels, bytes, the roofline of every kernel. Read by `llmc
inspect` and, as report.html (compiler/report_page.py), by people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from llmc.codegen.cpu.measured_limits import MeasuredLimits
from llmc.codegen.package import Facts
from llmc.compiler.capture.capture import Captured, ignored_settings
from llmc.compiler.quality.formats import Choice
from llmc.compiler.roofline.lowering import Lowering
from llmc.compiler.roofline.predict import predict
from llmc.compiler.sources.model_source import ModelSource
from llmc.compiler.targets.backend import Backend
from llmc.ir.graph import Graph
from llmc.passes.rewrite import RuleLog
from llmc.runtime.artifact.manifest import Limits

ROOFLINE_LENGTH = 1024  # tokens of each sequence


def build_report(
    facts: Facts,
    logs: Mapping[str, RuleLog],
    targets: Mapping[str, Any],
    source: ModelSource,
    captured: Captured,
    notices: Sequence[str] = (),
    choice: Choice | None = None,
) -> dict[str, Any]:
    """Everything a build knows about itself, as plain JSON values. By target: `logs` of the rules that led to its
    kernels, and what its backend reports (compiler/targets). `notices`: a line for each disagreement of the model's
    files. `choice`: of formats, where they were chosen."""
    return {
        "model": {
            "name": source.name,
            "class": captured.model_class,
            "dtype": facts.model.dtype,
            "licence": source.licence,
            "stored_as": source.quantization,
            "ignored_config_keys": ignored_settings(source, captured),
            "unread_generation_settings": list(source.generation.unread),
            "notices": list(notices),
            "ignored_tensors": list(captured.ignored_tensors),
            "untied_parameters": list(captured.untied),
        },
        "formats": None if choice is None else choice.to_json(),
        "targets": {name: {"rules": _rules(logs[name]), **found} for name, found in targets.items()},
        "limits": {"max_seq_len": facts.limits.max_seq_len, "max_batch": facts.limits.max_batch},
    }


def _rules(log: RuleLog) -> dict[str, Any]:
    return {
        "applied": dict(sorted(log.applied.items())),
        "refused": {name: dict(sorted(where.items())) for name, where in sorted(log.refused.items())},
    }


def roofline_of(
    entries: Sequence[Graph], target: Backend, limits: Limits, measured: MeasuredLimits | None
) -> dict[str, Any]:
    """What each kernel moves and computes in a step of one and of `max_batch` sequences, and in a prompt; on a GPU, or
    a CPU whose limits were measured, how long that takes at least."""
    length = max(1, min(ROOFLINE_LENGTH, limits.max_seq_len - 1))
    batches = sorted({1, limits.max_batch})
    lowering = Lowering({g.name: g for g in entries}, target.name)
    found = predict(lowering, target, batches, length, limits.max_tokens, measured)
    return {"predicted": True, "length": length, "chunk": limits.max_tokens, **asdict(found)}
