"""`llmc inspect --roofline`: predictions as tables for people, or as JSON (docs/roofline.md has its schema)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from llmc.codegen.cpu.measured_limits import read_limits
from llmc.codegen.cpu.target import TargetError
from llmc.codegen.cuda.target.assumptions import ASSUMED
from llmc.compiler.capture.errors import CaptureError
from llmc.compiler.commands.progress_console import shown
from llmc.compiler.commands.refusal import refuse
from llmc.compiler.roofline.fit import Shortage, shortage
from llmc.compiler.roofline.open_subject import open_subject
from llmc.compiler.roofline.predict import CHUNK, Kernel, Point, Prediction, Total, predict
from llmc.compiler.roofline.subject import PredictionError, Subject
from llmc.compiler.roofline.text import microseconds, milliseconds, operations, percent, short_place, size
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.targets.find import find_target
from llmc.compiler.targets.limits import check_limits
from llmc.ir.formats import Scheme
from llmc.ir.graph import IRError
from llmc.runtime.errors import RuntimeFailure

FORMAT = 1
DEFAULT_LENGTH = 1024


@dataclass(frozen=True)
class RooflineOptions:
    """As on the command line; `target` and `batch` are lists separated by commas."""

    subject: str
    target: str | None = None
    batch: str = "1,8,64"
    length: int | None = None  # as many as the model has positions for, at most DEFAULT_LENGTH
    chunk: int = CHUNK
    dtype: Scheme | None = None
    limits: Path | None = None
    kernels: bool = False
    as_json: bool = False


def show_roofline(options: RooflineOptions) -> int:
    """Print the predictions; returns the exit code."""
    try:
        asked = [find_target(name.strip()) for name in options.target.split(",")] if options.target else []
        batches = read_batches(options.batch)
        limits = read_limits(options.limits) if options.limits else None
        if limits is not None and asked:
            check_limits(limits, asked)
        scheme = options.dtype
        with shown(Console(stderr=True, markup=False, highlight=False)) as progress:
            subject = open_subject(options.subject, scheme, progress)
            targets = asked or [find_target(name) for name in subject.targets]
            if limits is not None:
                check_limits(limits, targets)
            length = _length(options.length, subject)
            lowered = [(subject.lowered(target), target) for target in targets]
            progress.stage("predicting")
            found: list[Prediction] = []
            for lowering, target in lowered:
                progress.amount(len(found), len(targets), "targets")
                found.append(predict(lowering, target, batches, length, options.chunk, limits))
    except (TargetError, PredictionError, SourceError, CaptureError, IRError, RuntimeFailure, OSError) as error:
        return refuse(error)
    lacks = (shortage(p, t, subject.dtype, length, options.chunk) for p, t in zip(found, targets, strict=True))
    lacking = [lack for lack in lacks if lack is not None]
    if options.as_json:
        print(json.dumps(to_plain(subject, options.chunk, found, lacking), indent=1))
        return 0
    console = Console()
    for lack in lacking:
        for line in lack.lines(subject.name, subject.dtype, length):
            console.print(line, style="bold")
    _tables(console, subject, replace(options, length=length), found)
    return 0


def _length(asked: int | None, subject: Subject) -> int:
    """Tokens of each sequence: one position at least is left for an answer."""
    if asked is None:
        return min(DEFAULT_LENGTH, subject.max_seq_len - 1)
    if asked >= subject.max_seq_len:
        raise PredictionError(
            f"--length {asked}: {subject.name} has {subject.max_seq_len} positions, for answers as well"
        )
    return asked


def to_plain(subject: Subject, chunk: int, predictions: list[Prediction], lacking: list[Shortage]) -> dict[str, object]:
    """What --json prints."""
    return {
        "format": FORMAT,
        "predicted": True,
        "model": {
            "name": subject.name,
            "dtype": subject.dtype,
            "max_seq_len": subject.max_seq_len,
            "ignored_settings": list(subject.ignored()),
        },
        "chunk": chunk,
        "assumptions": asdict(ASSUMED),
        "does_not_fit": [asdict(lack) for lack in lacking],
        "targets": [asdict(p) for p in predictions],
    }


def read_batches(text: str) -> list[int]:
    """Of --batch. Raises PredictionError."""
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
    if ignored := subject.ignored():
        console.print(f"config keys that HF ignores: {', '.join(ignored)}", markup=False)
    fitting = [(p, q) for p in found for q in p.points if q.fits is not False]
    if not fitting:
        return
    console.print(_summary(options, found))
    for prediction, point in fitting if options.kernels else fitting[:1]:
        console.print(_kernel_table(prediction, point, "decode", point.tpot, console.width))
        console.print(_kernel_table(prediction, point, "prefill", point.ttft, console.width))
    if not options.kernels and len(fitting) > 1:
        console.print("kernels of the other targets and batches: --kernels, or --json")


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def _summary(options: RooflineOptions, found: list[Prediction]) -> Table:
    table = _table(f"predicted, {options.length or 0:,} tokens per sequence, prefill in steps of {options.chunk:,}")
    table.add_column("target", overflow="fold")
    for name in ("batch", "TPOT floor", "expected", "%", "tok/s", "TTFT floor", "expected", "most fit"):
        table.add_column(name, justify="right", overflow="fold")
    table.caption = "times in ms; %: floor / expected; most fit: the largest batch in memory; ?: unknown"
    table.caption_justify = "left"
    for p in found:
        for q in p.points:
            times = ["does not fit", *[""] * 5] if q.fits is False else _times(q)
            most = "?" if p.largest_batch is None else f"{p.largest_batch:,}"
            table.add_row(p.target, str(q.batch), *times, most, style="red" if q.fits is False else None)
    return table


def _times(point: Point) -> list[str]:
    tpot, ttft = point.tpot, point.ttft
    rate = point.batch / tpot.expected_s if tpot.expected_s else None
    return [
        *(_brief(t) for t in (tpot.floor_s, tpot.expected_s)),
        "?" if tpot.fraction is None else percent(tpot.fraction),
        f"{rate:,.0f}" if rate else "?",
        *(_brief(t) for t in (ttft.floor_s, ttft.expected_s)),
    ]


def _brief(seconds: float | None) -> str:
    return "?" if seconds is None else milliseconds(seconds).removesuffix(" ms")


@dataclass(frozen=True)
class _Column:
    """Of a table of kernels. `least`: the narrowest terminal that has room for it; `most`: the widest that needs it."""

    name: str
    show: Callable[[Kernel], str]
    total: Callable[[Total], str]
    least: int = 0
    most: int | None = None
    left: bool = False


def _bytes(*fields: str) -> tuple[Callable[[Kernel], str], Callable[[Total], str]]:
    def of(kernel: Kernel) -> int:
        return sum(getattr(kernel, f) for f in fields)

    return (lambda k: size(of(k))), (lambda t: size(sum(of(k) for k in t.kernels)))


COMPACT, ROOMY = 95, 150  # columns of a terminal
_COLUMNS = (
    _Column("kernel", lambda k: f"{k.op} {k.shape}", lambda t: "all", left=True),
    _Column("where", lambda k: short_place(k.where), lambda t: "", least=ROOMY, left=True),
    _Column("n", lambda k: str(k.count), lambda t: str(sum(k.count for k in t.kernels))),
    _Column("bytes", *_bytes("weight_bytes", "activation_bytes", "kv_bytes"), most=COMPACT),
    _Column("weights", *_bytes("weight_bytes"), least=COMPACT),
    _Column("activ.", *_bytes("activation_bytes"), least=COMPACT),
    _Column("KV", *_bytes("kv_bytes"), least=COMPACT),
    _Column(
        "ops",
        lambda k: operations(k.matrix_flops + k.vector_flops),
        lambda t: operations(sum(k.matrix_flops + k.vector_flops for k in t.kernels)),
    ),
    _Column("floor us", lambda k: microseconds(k.floor_s), lambda t: microseconds(t.floor_s)),
    _Column("bound", lambda k: k.bound or "unknown", lambda t: "", left=True),
    _Column("expected", lambda k: microseconds(k.expected_s), lambda t: microseconds(t.expected_s)),
    _Column("%", lambda k: percent(_fraction(k)), lambda t: percent(t.fraction)),
)


def _kernel_table(prediction: Prediction, point: Point, what: str, total: Total, width: int) -> Table:
    table = _table(f"{prediction.target}, batch {point.batch}: {what}, {total.launches} launches (predicted)")
    columns = [c for c in _COLUMNS if c.least <= width and (c.most is None or width < c.most)]
    for c in columns:
        table.add_column(c.name, justify="left" if c.left else "right", no_wrap=not c.left, overflow="fold")
    for kernel in total.kernels:
        table.add_row(*(c.show(kernel) for c in columns))
    table.add_section()
    table.add_row(*(c.total(total) for c in columns))
    return table


def _fraction(kernel: Kernel) -> float | None:
    return kernel.floor_s / kernel.expected_s if kernel.floor_s is not None and kernel.expected_s else None
