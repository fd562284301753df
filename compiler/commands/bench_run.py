"""From the command line of `llmc bench` to what it measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from llmc.codegen.cpu.measured_limits import read_limits
from llmc.serve.load.command import bench
from llmc.serve.load.options import BenchOptions, LoadArguments, MixOptions
from llmc.serve.load.utilisation import Limits


def run_bench(engine: Path | None, options: Mapping[str, Any]) -> int:
    """`options`: those of bench_options.py, by name. Raises what `bench` and `read_limits` raise."""
    given = dict(options)
    mix = MixOptions(**{field.name: given.pop(field.name) for field in fields(MixOptions)})
    load = LoadArguments(**{field.name: given.pop(field.name) for field in fields(LoadArguments)})
    limits = given.pop("limits")
    if limits is not None:
        measured = read_limits(limits)
        limits = Limits(measured.bandwidth, asdict(measured.peaks))
    return bench(BenchOptions(engine, mix=mix, load=load, limits=limits, **given))
