"""`llmc inspect` and `llmc targets`: what an engine holds, and what can be built for."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from llmc.compiler.targets import find_target, target_names
from llmc.runtime.artifact import read_manifest
from llmc.runtime.kv_pools import sequence_bytes
from llmc.runtime.manifest import Manifest
from llmc.runtime.memory import available_bytes


def show_engine(folder: Path) -> None:
    """Print the manifest and the build's report for people. Raises EngineError."""
    manifest = read_manifest(folder)
    report = json.loads((folder / "report.json").read_text())
    console = Console()
    _facts(console, folder, manifest, report)
    _kernels(console, report)
    _rules(console, report)
    _memory(console, manifest, report)


def _facts(console: Console, folder: Path, manifest: Manifest, report: dict[str, Any]) -> None:
    model, target = manifest.model, manifest.target
    console.print(f"[bold]{folder}[/bold]  engine format {manifest.format}, step ABI {manifest.abi}")
    console.print(f"model     {model.name} ({model.architecture}), {model.num_parameters:,} parameters, {model.dtype}")
    console.print(f"target    {target.name} ({target.arch}: {', '.join(target.features)})")
    console.print(f"made by   {', '.join(f'{k} {v}' for k, v in manifest.producer.items())}")
    stored = report["model"]
    for key, label in (
        ("stored_as", "source"),
        ("licence", "licence"),
        ("ignored_config_keys", "config keys that HF ignores"),
        ("ignored_tensors", "tensors that HF ignores"),
        ("untied_parameters", "untied parameters"),
    ):
        if stored[key]:
            value = stored[key]
            console.print(f"{label}: {', '.join(value) if isinstance(value, list) else value}")


def _kernels(console: Console, report: dict[str, Any]) -> None:
    table = Table("kernel", "decode", "prefill", title="launches")
    names = sorted({name for launches in report["entries"].values() for name in launches})
    for name in names:
        table.add_row(name, *(str(report["entries"][entry].get(name, 0)) for entry in ("decode", "prefill")))
    console.print(table)
    for choice in report["kernels"]:
        console.print(f"{choice['op']}: [green]{choice['chosen']}[/green]  {choice['reason']}")
        for name, reason in choice["rejected"].items():
            console.print(f"    not {name}: {reason}")


def _rules(console: Console, report: dict[str, Any]) -> None:
    table = Table("rule", "applied", title="what fused")
    for name, count in report["rules"]["applied"].items():
        table.add_row(name, str(count))
    console.print(table)
    for name, places in report["rules"]["refused"].items():
        for loc, reason in places.items():
            console.print(f"not {name} at {loc}: {reason}")


def _memory(console: Console, manifest: Manifest, report: dict[str, Any]) -> None:
    memory, kv, limits = manifest.memory, manifest.kv, manifest.limits
    arena = memory.arena
    sequence = partial(sequence_bytes, kv, limits.max_tokens)
    scratch = arena.per_token * limits.max_tokens + arena.per_row * limits.max_batch
    table = Table("bytes", "", title="memory")
    table.add_row("weights", f"{memory.weights_bytes:,}")
    for group in kv.groups:
        kept = "" if group.window is None else f", of the last {group.window:,}"
        table.add_row(f"KV per token{kept}: {len(group.slots)} slots", f"{group.bytes_per_token:,}")
    table.add_row(f"KV per sequence of {limits.max_seq_len:,}", f"{sequence(limits.max_seq_len):,}")
    table.add_row(f"scratch for steps of {limits.max_tokens} tokens, {limits.max_batch} rows", f"{scratch:,}")
    console.print(table)
    free = available_bytes() - scratch
    counts = [f"{max(free, 0) // sequence(n):,} sequences of {n:,}" for n in (limits.max_seq_len, 1024)]
    console.print(
        f"proof     {available_bytes():,} bytes are free here: beside weights (mapped) and scratch they hold the KV of "
        f"{' or '.join(counts)} tokens at once"
    )


def show_targets() -> None:
    """Print the targets that `llmc build` takes, and what this machine is."""
    console = Console()
    here = find_target("cpu")
    console.print(f"cpu    this machine: {here.arch} with {', '.join(here.features)}")
    for name in target_names()[1:]:
        console.print(f"{name}", markup=False)
    console.print("h100   not yet: CUDA engines follow with the CUDA kernels (issue 4)")
