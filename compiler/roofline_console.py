"""`llmc inspect --roofline`: predictions as tables for people, or as JSON (docs/roofline.md has its schema)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from llmc.codegen.cpu.measured_limits import read_limits
from llmc.codegen.cpu.target import TargetError
from llmc.codegen.cuda.roofline import ASSUMED
from llmc.compiler.capture.errors import CaptureError
from llmc.compiler.ir.graph import IRError
from llmc.compiler.ir.ops.kernel import Scheme
from llmc.compiler.refusal import refuse
from llmc.compiler.roofline import CHUNK, Kernel, Point, Prediction, Total, predict
from llmc.compiler.roofline_subject import PredictionError, Subject, open_subject
from llmc.compiler.roofline_text import microseconds, milliseconds, percent, short_place, size
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.targets import find_target
from llmc.runtime.errors import RuntimeFailure

FORMAT = 1


@dataclass(frozen=True)
class RooflineOptions:
    """As on the command line; `target` and `batch` are lists separated by commas."""

    subject: str
    target: str | None = None
    batch: str = "1,8,64"
    length: int = 1024
    chunk: int = CHUNK
    dtype: str | None = None
    limits: Path | None = None
    kernels: bool = False
    as_json: bool = False


def show_roofline(options: RooflineOptions) -> int:
    """Print the predictions; returns the exit code."""
    try:
        asked = [find_target(name.strip()) for name in options.target.split(",")] if options.target else []
        batches = _batches(options.batch)
        limits = read_limits(options.limits) if options.limits else None
        if limits is not None and asked:
            limits.check(asked)
        subject = open_subject(options.subject, Scheme(options.dtype) if options.dtype else None)
        targets = asked or [find_target(name) for name in subject.targets]
        if limits is not None:
            limits.check(targets)
        if options.length >= subject.max_seq_len:
            raise PredictionError(
                f"--length {options.length}: {subject.name} has {subject.max_seq_len} positions, for answers as well"
            )
        found = [predict(subject.lowered(t), t, batches, options.length, options.chunk, limits) for t in targets]
    except (TargetError, PredictionError, SourceError, CaptureError, IRError, RuntimeFailure, OSError) as error:
        return refuse(error)
    if options.as_json:
        print(json.dumps(to_plain(subject, options.chunk, found), indent=1))
    else:
        _tables(Console(), subject, options, found)
    return 0


def to_plain(subject: Subject, chunk: int, predictions: list[Prediction]) -> dict[str, object]:
    """What --json prints."""
    return {
        "format": FORMAT,
        "predicted": True,
        "model": {
            "name": subject.name,
            "dtype": subject.dtype,
            "max_seq_len": subject.max_seq_len,
        },
        "chunk": chunk,
        "assumptions": asdict(ASSUMED),
        "targets": [asdict(p) for p in predictions],
    }


def _batches(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise PredictionError(f"--batch {text!r}: expected numbers from 1 on, separated by commas")
    return found


def _tables(console: Console, subject: Subject, options: RooflineOptions, found: list[Prediction]) -> None:
    console.print(
        f"[bold]{subject.name}[/bold] in {subject.dtype}. PREDICTED from shapes and data sheets, not measured."
    )
    for p in found:
        memory = f", memory {p.memory_bytes / 2**30:.0f} GiB" if p.memory_bytes else ""
        rates = f"{p.bandwidth / 1e9:,.0f} GB/s{memory}" if p.bandwidth else "bandwidth and peaks unknown (--limits)"
        console.print(
            f"{p.target}  {p.product}: {rates}; weights {p.weight_bytes / 1e9:.3f} GB, "
            f"KV {p.kv_bytes_per_token:,} bytes per token"
        )
        if p.lowered_for is not None and p.lowered_for != p.target:
            console.print(f"    as the engine runs on {p.lowered_for}: it has no graph for {p.target}")
    console.print(_summary(options, found))
    shown = [(p, q) for p in found for q in p.points] if options.kernels else [(found[0], found[0].points[0])]
    for prediction, point in shown:
        console.print(_kernel_table(prediction, point, "decode", point.tpot))
        console.print(_kernel_table(prediction, point, "prefill", point.ttft))
    if not options.kernels and len(found) * len(found[0].points) > 1:
        console.print("kernels of the other targets and batches: --kernels, or --json")


def _summary(options: RooflineOptions, found: list[Prediction]) -> Table:
    table = Table(title=f"predicted, {options.length:,} tokens per sequence, prefill in steps of {options.chunk:,}")
    for name in ("target", "batch", "TPOT floor", "expected", "floor/exp.", "tokens/s", "TTFT floor", "expected"):
        table.add_column(name, justify="left" if name == "target" else "right")
    table.add_column("largest batch", justify="right")
    for p in found:
        for q in p.points:
            rate = q.batch / q.tpot.expected_s if q.tpot.expected_s else None
            table.add_row(
                p.target,
                str(q.batch),
                milliseconds(q.tpot.floor_s),
                milliseconds(q.tpot.expected_s),
                percent(q.tpot.fraction),
                f"{rate:,.0f}" if rate else "unknown",
                milliseconds(q.ttft.floor_s),
                milliseconds(q.ttft.expected_s),
                "unknown" if p.largest_batch is None else f"{p.largest_batch:,}",
                style="red" if q.fits is False else None,
            )
    return table


def _kernel_table(prediction: Prediction, point: Point, what: str, total: Total) -> Table:
    title = f"{prediction.target}, batch {point.batch}: {what}, {total.launches} launches (predicted)"
    table = Table(title=title, title_justify="left")
    for name in ("kernel", "where", "n"):
        table.add_column(name, overflow="fold", justify="right" if name == "n" else "left")
    for name in ("weights", "activations", "KV", "GFLOP", "floor us", "bound", "expected us", "floor/exp."):
        table.add_column(name, justify="left" if name == "bound" else "right", no_wrap=True)
    for k in total.kernels:
        table.add_row(
            f"{k.op} {k.shape}",
            short_place(k.where),
            str(k.count),
            size(k.weight_bytes),
            size(k.activation_bytes),
            size(k.kv_bytes),
            f"{(k.matrix_flops + k.vector_flops) / 1e9:,.3g}",
            microseconds(k.floor_s),
            k.bound or "unknown",
            microseconds(k.expected_s),
            percent(_fraction(k)),
        )
    table.add_section()
    sums = (size(sum(getattr(k, f) for k in total.kernels)) for f in ("weight_bytes", "activation_bytes", "kv_bytes"))
    flops = sum(k.matrix_flops + k.vector_flops for k in total.kernels) / 1e9
    table.add_row(
        "all", "", str(sum(k.count for k in total.kernels)), *sums, f"{flops:,.3g}", microseconds(total.floor_s), "",
        microseconds(total.expected_s), percent(total.fraction),
    )  # fmt: skip
    return table


def _fraction(kernel: Kernel) -> float | None:
    return kernel.floor_s / kernel.expected_s if kernel.floor_s is not None and kernel.expected_s else None
