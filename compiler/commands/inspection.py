"""`llmc inspect` and `llmc targets`: what an engine holds, and what can be built for."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmc.codegen.cpu.target import NATIVE, cpu_names, find_cpu
from llmc.codegen.cuda.target.gpus import GPUS
from llmc.compiler.commands.certificate_console import certificate_lines, layers_table
from llmc.compiler.verify.certificate import CERTIFICATE, Certificate, read_certificate
from llmc.runtime.artifact.artifact import read_file, read_manifest, unread_files
from llmc.runtime.artifact.manifest import CPU, Manifest, TargetEntry
from llmc.runtime.cpu.memory import available_bytes, usable_cores
from llmc.runtime.kv.pool_sizes import sequence_bytes

LEGEND = "T: tokens of a step, R: its sampled rows; 64x8 x12: channels by tokens of a block, stages of its ring. "


def show_engine(folder: Path) -> None:
    """Print the manifest and the build's report for people. Raises EngineError."""
    manifest = read_manifest(folder)
    report = json.loads(read_file(folder, manifest, "report.json"))
    console = Console(markup=False, highlight=False)
    console.print(Text(str(folder), "bold"), soft_wrap=True)  # a path stays in one piece
    certificate = read_certificate(folder, manifest)
    console.print(_facts(folder, manifest, report, certificate))
    if certificate is not None and certificate.layers:
        console.print(layers_table(certificate))
    for target in manifest.targets:
        found = report["targets"][target.name]
        console.rule(f"{target.name}", align="left")
        for table in (_launches(found), *_preferences(found), *_rules(found), _memory(manifest, target)):
            if table.row_count:
                console.print(table)


def _facts(folder: Path, manifest: Manifest, report: Mapping[str, Any], certificate: Certificate | None) -> Table:
    model, stored = manifest.model, report["model"]
    source = f", made of {stored['stored_as']}" if stored["stored_as"] else ""
    facts = {
        "model": f"{model.name} ({model.architecture}), {model.num_parameters:,} parameters",
        "weights": f"{model.dtype}{source}",
        **{
            f"target {target.name}": f"{target.arch}: {', '.join(target.features) or 'no extensions'}"
            for target in manifest.targets
        },
        "linears": _formats(report.get("formats")),
        "made by": ", ".join(f"{tool} {version}" for tool, version in manifest.producer.items()),
        "formats": f"engine {manifest.format}, step ABI {manifest.abi}",
        "licence": stored["licence"],
        "config keys that HF ignores": ", ".join(stored["ignored_config_keys"]),
        "generation settings that nobody reads": ", ".join(stored["unread_generation_settings"]),
        "tensors that HF ignores": ", ".join(stored["ignored_tensors"]),
        "untied parameters": ", ".join(stored["untied_parameters"]),
    }
    table = Table.grid(padding=(0, 2), expand=False)
    for label, value in facts.items():
        if value:
            table.add_row(label, value)
    for notice in stored["notices"]:
        table.add_row("note", notice)
    for line in certificate_lines(certificate):
        table.add_row("certificate", line)
    if unread := [name for name in unread_files(folder, manifest) if name != CERTIFICATE]:
        more = f" and {len(unread) - 8} more" if len(unread) > 8 else ""
        table.add_row("files that nobody reads", ", ".join(unread[:8]) + more)
    return table


def _formats(chosen: Mapping[str, Any] | None) -> str:
    """How many linears have which, and why."""
    if chosen is None:
        return ""
    counts = Counter(scheme for unit in chosen["units"] for scheme in [unit["scheme"]] * len(unit["modules"]))
    each = ", ".join(f"{scheme} x{count}" for scheme, count in sorted(counts.items()))
    return (
        f"{each}: {chosen['bits']:.2f} bits a weight, chosen for {chosen['budget']} over {chosen['tokens']} tokens of "
        f"text ({chosen['text']}); KL of {chosen['expected_kl']:.3g} expected of their rounding"
    )


def _launches(report: Mapping[str, Any]) -> Table:
    table = Table("kernel", title="launches of a step", title_justify="left")
    for entry in report["entries"]:
        table.add_column(entry, justify="right")
    for name in sorted({name for launches in report["entries"].values() for name in launches}):
        table.add_row(name, *(str(launches.get(name, 0)) for launches in report["entries"].values()))
    return table


def _preferences(report: Mapping[str, Any]) -> list[Table]:
    """Of each op's choices the first words: the rest is in report.html, with all that was rejected."""
    choices = report["kernels"]
    ops = dict.fromkeys(choice["op"] for choice in choices)
    tables = [_choices(op, [choice for choice in choices if choice["op"] == op]) for op in ops]
    if tables:
        legend = LEGEND if any(choice.get("kernels") for choice in choices) else ""
        tables[-1].caption = f"{legend}Everything that was rejected: report.html."
    return tables


def _choices(op: str, choices: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    for header in (op, "chosen", "why"):
        table.add_column(header, min_width=len(header), overflow="fold")
    rejected = any(choice["rejected"] for choice in choices)
    for header in ("next best", "why not", "others") if rejected else ():
        table.add_column(header, justify="right" if header == "others" else "left")
    for choice in choices:
        name, reason = next(iter(choice["rejected"].items()), ("", ""))
        others = len(choice["rejected"]) - 1
        last = (name, _head(reason), str(others) if others > 0 else "") if rejected else ()
        table.add_row(choice.get("of", ""), Text(choice["chosen"], "green"), _head(choice["reason"]), *last)
    return table


def _head(reason: str) -> str:
    return reason.partition(": ")[0]


def _rules(report: Mapping[str, Any]) -> tuple[Table, Table]:
    applied = Table("rule", title="what fused", title_justify="left")
    applied.add_column("times", justify="right")
    for name, count in report["rules"]["applied"].items():
        applied.add_row(name, str(count))
    refused = Table("rule", "where", "why not", title="what did not fuse", title_justify="left")
    for name, places in report["rules"]["refused"].items():
        for (where, reason), count in alike(places).items():
            refused.add_row(name, where if count == 1 else f"{where}: {count} times", reason)
    return applied, refused


def alike(places: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """How often the same was refused for the same reason in layers that differ by their number."""
    counts: dict[tuple[str, str], int] = {}
    for loc, reason in places.items():
        key = (re.sub(r"\.\d+\b", ".*", loc), re.sub(r"\.\d+\b", ".*", reason))
        counts[key] = counts.get(key, 0) + 1
    return counts


def _memory(manifest: Manifest, target: TargetEntry) -> Table:
    memory, kv, limits = target.memory, target.kv, manifest.limits
    sequence = partial(sequence_bytes, kv, limits.max_tokens)
    threads = usable_cores() if target.kind == CPU else 0
    scratch = memory.arena.total(limits.max_tokens, limits.max_batch, threads)
    table = Table("", title=f"memory on {target.name}", title_justify="left")
    table.add_column("bytes", justify="right")
    table.add_row("weights", f"{memory.weights_bytes:,}")
    for group in kv.groups:
        kept = "" if group.window is None else f", of the last {group.window:,}"
        table.add_row(f"KV per token{kept}: {len(group.slots)} slots", f"{group.bytes_per_token:,}")
    table.add_row(f"KV per sequence of {limits.max_seq_len:,}", f"{sequence(limits.max_seq_len):,}")
    by = f", {threads} threads" if threads else ""
    table.add_row(f"scratch for steps of {limits.max_tokens} tokens, {limits.max_batch} rows{by}", f"{scratch:,}")
    if target.kind == CPU:
        available = available_bytes()
        table.add_section()
        table.add_row("available on this machine now", f"{available:,}")
        for length in sorted({limits.max_seq_len, min(1024, limits.max_seq_len)}, reverse=True):
            count = max(available - scratch, 0) // sequence(length)
            table.add_row(f"sequences of {length:,} tokens that fit beside scratch", f"{count:,}")
    return table


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
