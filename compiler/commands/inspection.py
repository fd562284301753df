"""`llmc inspect` and `llmc targets`: what an engine holds, and what can be built for."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmc.codegen.cpu.target import NATIVE, cpu_names, find_cpu
from llmc.codegen.cuda.target.gpus import GPUS
from llmc.runtime.artifact.artifact import read_file, read_manifest, unread_files
from llmc.runtime.artifact.manifest import CPU, Manifest, TargetEntry
from llmc.runtime.cpu.memory import available_bytes
from llmc.runtime.kv.pool_sizes import sequence_bytes


def show_engine(folder: Path) -> None:
    """Print the manifest and the build's report for people. Raises EngineError."""
    manifest = read_manifest(folder)
    report = json.loads(read_file(folder, manifest, "report.json"))
    console = Console(markup=False)
    _facts(console, folder, manifest, report)
    for target in manifest.targets:
        found = report["targets"][target.name]
        console.rule(f"{target.name}", align="left")
        _kernels(console, found)
        _rules(console, found)
        _memory(console, manifest, target)


def _facts(console: Console, folder: Path, manifest: Manifest, report: dict[str, Any]) -> None:
    model = manifest.model
    console.print(Text(str(folder), "bold"), f" engine format {manifest.format}, step ABI {manifest.abi}")
    console.print(f"model     {model.name} ({model.architecture}), {model.num_parameters:,} parameters, {model.dtype}")
    for target in manifest.targets:
        console.print(f"target    {target.name} ({target.arch}: {', '.join(target.features)})")
    console.print(f"made by   {', '.join(f'{k} {v}' for k, v in manifest.producer.items())}")
    stored = report["model"]
    for key, label in (
        ("stored_as", "source"),
        ("licence", "licence"),
        ("ignored_config_keys", "config keys that HF ignores"),
        ("unread_generation_settings", "generation settings that nobody reads"),
        ("ignored_tensors", "tensors that HF ignores"),
        ("untied_parameters", "untied parameters"),
    ):
        if stored[key]:
            value = stored[key]
            console.print(f"{label}: {', '.join(value) if isinstance(value, list) else value}")
    for notice in stored["notices"]:
        console.print(f"note: {notice}")
    if unread := unread_files(folder, manifest):
        more = f" and {len(unread) - 8} more" if len(unread) > 8 else ""
        console.print(f"files that are no part of the engine and that nobody reads: {', '.join(unread[:8])}{more}")


def _kernels(console: Console, report: dict[str, Any]) -> None:
    table = Table("kernel", "decode", "prefill", title="launches")
    names = sorted({name for launches in report["entries"].values() for name in launches})
    for name in names:
        table.add_row(name, *(str(report["entries"][entry].get(name, 0)) for entry in ("decode", "prefill")))
    console.print(table)
    for choice in report["kernels"]:
        console.print(f"{choice['op']}:", Text(choice["chosen"], "green"), f" {choice['reason']}")
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


def _memory(console: Console, manifest: Manifest, target: TargetEntry) -> None:
    memory, kv, limits = target.memory, target.kv, manifest.limits
    arena = memory.arena
    sequence = partial(sequence_bytes, kv, limits.max_tokens)
    scratch = arena.constant + arena.per_token * limits.max_tokens + arena.per_row * limits.max_batch
    table = Table("bytes", "", title=f"memory on {target.name}")
    table.add_row("weights", f"{memory.weights_bytes:,}")
    for group in kv.groups:
        kept = "" if group.window is None else f", of the last {group.window:,}"
        table.add_row(f"KV per token{kept}: {len(group.slots)} slots", f"{group.bytes_per_token:,}")
    table.add_row(f"KV per sequence of {limits.max_seq_len:,}", f"{sequence(limits.max_seq_len):,}")
    table.add_row(f"scratch for steps of {limits.max_tokens} tokens, {limits.max_batch} rows", f"{scratch:,}")
    console.print(table)
    if target.kind != CPU:
        return
    free = available_bytes() - scratch
    counts = [f"{max(free, 0) // sequence(n):,} sequences of {n:,}" for n in (limits.max_seq_len, 1024)]
    console.print(
        f"proof     {available_bytes():,} bytes are free here: beside weights (mapped) and scratch they hold the KV of "
        f"{' or '.join(counts)} tokens at once"
    )


def show_targets() -> None:
    """Print the targets that `llmc build` takes, and what this machine is."""
    console = Console(markup=False)
    here = find_cpu(NATIVE)
    assert here is not None
    console.print(f"cpu    this machine: {here.arch} with {', '.join(here.features)}")
    for name in cpu_names()[1:]:
        console.print(name)
    table = Table(
        "GPU", "", "SMs", "memory", "bandwidth", "bf16 peak", "L2", title="GPUs: data sheet figures (docs/roofline.md)"
    )
    for gpu in GPUS.values():
        table.add_row(
            gpu.name,
            f"{gpu.product}, {gpu.arch}",
            str(gpu.sms),
            f"{gpu.memory_bytes >> 30} GiB",
            f"{gpu.bandwidth / 1e9:,.0f} GB/s",
            f"{(gpu.peaks.bf16 or 0) / 1e12:,.0f} TFLOP/s",
            f"{gpu.l2_bytes >> 20} MiB",
        )
    console.print(table)
