"""`llmc inspect --profile`: what an engine's kernels take on this machine, as a table for people or as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from llmc.codegen.cpu.target import TargetError
from llmc.codegen.cpu.toolchain import ToolchainError
from llmc.compiler.commands.progress_console import shown
from llmc.compiler.commands.refusal import refuse
from llmc.compiler.commands.roofline_console import read_batches
from llmc.compiler.profile.marked_engine import MarkedEngine
from llmc.compiler.profile.measure import Node, Profile, profile_decode
from llmc.compiler.roofline.subject import PredictionError
from llmc.runtime.errors import RuntimeFailure

FORMAT = 1
DEFAULT_LENGTH = 128
STEPS = 50
_TOKENS = 2 * STEPS + 16  # at most, that a measured sequence gets beside its prompt


def show_profile(folder: Path, batch: str | None, length: int | None, as_json: bool) -> int:
    """Measure decode steps and print what their kernels take; returns the exit code. `batch`: with commas."""
    length = DEFAULT_LENGTH if length is None else length
    try:
        batches = read_batches(batch or "1")
        with shown(Console(stderr=True, markup=False, highlight=False)) as progress:
            progress.stage("compiling kernels with marks")
            with MarkedEngine(folder, None, length + _TOKENS) as marked:
                progress.stage("measuring")
                found = [profile_decode(marked, batch, length, STEPS) for batch in batches]
    except (RuntimeFailure, TargetError, ToolchainError, PredictionError, OSError) as error:
        return refuse(error)
    if as_json:
        print(json.dumps({"format": FORMAT, "engine": str(folder), "steps": [asdict(p) for p in found]}, indent=1))
        return 0
    console = Console()
    for profile in found:
        print_profile(console, profile)
    return 0


def print_profile(console: Console, profile: Profile) -> None:
    """One step's table: the nodes that take longest first."""
    console.print(
        f"{profile.entry} of {profile.batch} x {profile.length} tokens, {profile.threads} threads, medians of "
        f"{profile.steps} steps; plain read {profile.read_bytes_per_s / 1e9:.1f} GB/s",
        highlight=False,
    )
    console.print(_table(profile))
    rate = profile.batch * (profile.length if profile.entry == "prefill" else 1) / profile.step_us * 1e6
    console.print(
        f"step {profile.step_us:.0f} us ({rate:.0f} tokens a second), of them around kernels and barriers "
        f"{profile.around_us:.0f} us",
        highlight=False,
    )


def _table(profile: Profile) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("kernel")
    table.add_column("of", overflow="ellipsis", no_wrap=True, max_width=56)
    for name in ("calls", "us", "barrier us", "floor us", "of floor", "rate"):
        table.add_column(name, justify="right", no_wrap=True)
    for node in profile.nodes:
        table.add_row(*_row(node))
    floors = [node.floor_us for node in profile.nodes if node.floor_us is not None]
    busy, waited = (sum(getattr(n, name) for n in profile.nodes) for name in ("busy_us", "waited_us"))
    total = f"{sum(floors):.0f}", f"{sum(floors) / (busy + waited):.0%}"
    table.add_section()
    calls = sum(node.calls for node in profile.nodes)
    table.add_row("all", "", str(calls), f"{busy:.0f}", f"{waited:.0f}", *(total if floors else ("", "")), "")
    return table


def _row(node: Node) -> tuple[str, ...]:
    took = node.busy_us + node.waited_us
    floor = node.floor_us if node.floor_us else None
    moved = node.weight_bytes + node.kv_bytes
    if node.floor_us is None:
        rate = f"{node.operations / took / 1e3:.0f} GFLOP/s" if node.operations else ""
    else:
        rate = f"{moved / took / 1e3:.1f} GB/s" if moved else ""
    figures = (f"{floor:.1f}", f"{floor / took:.0%}") if floor is not None else ("", "")
    return (node.kernel, node.role, str(node.calls), f"{node.busy_us:.1f}", f"{node.waited_us:.1f}", *figures, rate)
