"""edges.py ENGINE: leaves out every edge of every plan, one at a time, runs both entries, and prints what was reported.

One JSON line per edge: entry, launch, before, and the report (null where the answers came as if nothing were missing).
"""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import replace
from pathlib import Path

import llmc.runtime.cuda.device as device
from llmc.runtime import Engine
from llmc.runtime.artifact.artifact import read_manifest
from llmc.runtime.cuda.plan import Plan, read_plan
from llmc.runtime.errors import StepFailed

# Steps of at most eight tokens: a chunk; a single token and a chunk, twice; single tokens.
PROMPTS = [[5, 17, 30, 2, 9, 44, 7, 3], [6, 18, 31, 3, 10, 45, 8, 4, 12, 13]]


def without(plan: Plan, launch: int, before: int) -> Plan:
    launches = list(plan.launches)
    launches[launch] = replace(launches[launch], after=tuple(a for a in launches[launch].after if a != before))
    return replace(plan, launches=tuple(launches))


def report(folder: Path, entry: str, launch: int, before: int) -> str | None:
    """What steps of every kind report where one plan lacks an edge."""

    def read(text: bytes, where: str) -> Plan:
        plan = read_plan(text, where)
        return without(plan, launch, before) if plan.entry == entry else plan

    device.read_plan = read
    with Engine.load(folder, device="cuda", max_batch=2, max_tokens=8) as engine:
        try:
            engine.generate(PROMPTS, temperature=0.0, max_tokens=4, ignore_eos=True)
        except StepFailed as error:
            return str(error)
        finally:
            ctypes.CDLL("libcuda.so.1").llmcEmuReset()
    return None


def main(folder: Path) -> None:
    (target,) = (t for t in read_manifest(folder).targets if t.kind == "cuda")
    for entry in ("prefill", "decode"):
        plan = read_plan((folder / target.plan(entry)).read_bytes(), entry)
        for launch, node in enumerate(plan.launches):
            for before in node.after:
                found = report(folder, entry, launch, before)
                print(json.dumps({"entry": entry, "launch": launch, "before": before, "report": found}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
