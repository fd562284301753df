"""Seconds to build the demo model, and to load the engine: python bench/build.py.

Prints one JSON line per precision: imports (of the first), build after imports, load (best and median of 10), and the
machine's load, because figures of a busy machine are not the compiler's.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from llmc.compiler.progress import Progress
from llmc.compiler.sources.demo import fetch_demo

SCHEMES = ("f32", "bf16", "int8")
LOADS = 10


def one(model: str, out: str, scheme: str) -> None:
    """In a process of its own: build, then load."""
    begin = time.perf_counter()
    from llmc.compiler.build import BuildOptions, build
    from llmc.ir.formats import Scheme

    imported = time.perf_counter()
    stages: dict[str, float] = {}
    manifest = build(BuildOptions(model, Path(out), scheme=Scheme.named(scheme)), _Stages(stages))
    built = time.perf_counter()
    from llmc.runtime import Engine

    loads = []
    for _ in range(LOADS):
        start = time.perf_counter()
        Engine.load(out).close()
        loads.append(time.perf_counter() - start)
    figures = {
        "scheme": scheme,
        "weights_mb": round(manifest.targets[0].memory.weights_bytes / 1e6, 1),
        "imports_s": round(imported - begin, 2),
        "build_s": round(built - imported, 2),
        "stages_s": _durations(stages, built),
        "load_s": {"best": round(min(loads), 3), "median": round(statistics.median(loads), 3)},
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(figures), flush=True)


class _Stages(Progress):
    def __init__(self, starts: dict[str, float]) -> None:
        self.starts = starts

    def stage(self, text: str) -> None:
        self.starts[text] = time.perf_counter()


def _durations(starts: dict[str, float], end: float) -> dict[str, float]:
    ends = [*list(starts.values())[1:], end]
    return {name: round(stop - start, 2) for (name, start), stop in zip(starts.items(), ends, strict=True)}


def main() -> None:
    model = fetch_demo("smollm2")
    with tempfile.TemporaryDirectory() as folder:
        for scheme in SCHEMES:
            subprocess.run([sys.executable, __file__, str(model), f"{folder}/{scheme}.engine", scheme], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one(*sys.argv[1:])
    else:
        main()
