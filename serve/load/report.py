"""What a bench found, as JSON: for programs, so its names stay. A changed or removed one is a new SCHEMA."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from llmc.serve.load.campaign import Result, Workload
from llmc.serve.load.lengths import Lengths
from llmc.serve.load.offline import Speed
from llmc.serve.load.plan import Mix

SCHEMA = "llmc-bench/1"


@dataclass(frozen=True)
class Subject:
    """What was measured. `server`: its address and what it says it is; None in process."""

    engine: str | None
    model: str
    server: str | None
    prompts: str


def serving_report(kind: str, subject: Subject, workload: Workload, results: Sequence[Result]) -> dict[str, Any]:
    return {
        **_head(kind, subject),
        "workload": _workload(workload),
        "results": [
            {
                "name": result.name,
                "load": asdict(result.load),
                "median": asdict(result.median),
                "repetitions": [asdict(summary) for summary in result.repetitions],
                "errors": dict(result.errors),
            }
            for result in results
        ],
    }


def offline_report(subject: Subject, speeds: Sequence[Speed]) -> dict[str, Any]:
    return {**_head("offline", subject), "results": [{"name": s.case.name, **asdict(s)} for s in speeds]}


def to_json(report: dict[str, Any]) -> str:
    return json.dumps(report, indent=1, allow_nan=False) + "\n"


def _head(kind: str, subject: Subject) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "llmc": version("llmc"),
        "kind": kind,
        "subject": asdict(subject),
        "machine": {
            "arch": platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "load_average": round(os.getloadavg()[0], 2),
        },
    }


def _workload(workload: Workload) -> dict[str, Any]:
    if not isinstance(workload.requests, Mix):
        return {"seed": workload.seed, "trace": len(workload.requests)}
    mix = workload.requests
    return {
        "seed": workload.seed,
        "requests": mix.num_requests,
        "prompts": _lengths(mix.prompts),
        "outputs": _lengths(mix.outputs),
        "prefixes": asdict(mix.prefixes),
        "classes": dict(mix.classes or {}),
    }


def _lengths(lengths: Lengths) -> dict[str, Any]:
    return {"distribution": type(lengths).__name__.lower(), **asdict(lengths)}
