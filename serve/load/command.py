"""`llmc bench`: measure, show, write down."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from llmc.runtime import Engine
from llmc.runtime.artifact.artifact import read_manifest
from llmc.runtime.artifact.features import Machine as ThisMachine
from llmc.runtime.artifact.target import choose_target
from llmc.runtime.step.scheduling import SchedulingOptions
from llmc.serve.load.ablation import ablations
from llmc.serve.load.campaign import Contender, Load, Result, Target, Workload, compare
from llmc.serve.load.in_process import InProcess
from llmc.serve.load.metrics import Terms
from llmc.serve.load.offline import cases, measure_cases
from llmc.serve.load.options import DEFAULT_CONCURRENCY, BenchOptions, parse_batches
from llmc.serve.load.progress import Progress
from llmc.serve.load.refusal import BenchRefused
from llmc.serve.load.report import Subject, offline_report, serving_report, to_json
from llmc.serve.load.running_server import serving
from llmc.serve.load.slo import parse_slo
from llmc.serve.load.table import offline_table, serving_tables
from llmc.serve.load.utilisation import Machine, machine_of

EXIT_FAILED = 1  # some requests failed: the figures are those of the others


def bench(options: BenchOptions) -> int:
    """Exit code: 0, or 1 if requests failed. Raises BenchRefused, and what loading an engine raises."""
    options.check()
    if options.png is not None and find_spec("matplotlib") is None:
        raise BenchRefused("--png needs matplotlib: pip install 'llmc[bench]'")
    console = Console(width=None if sys.stdout.isatty() else 150)
    with Progress(Console(stderr=True)) as progress:
        if options.offline:
            return _offline(options, progress, console)
        return _serving(options, progress, console)


@dataclass(frozen=True)
class _Field:
    """Who takes part, and where."""

    kind: str
    subject: Subject
    contenders: Sequence[Contender]


def _serving(options: BenchOptions, progress: Progress, console: Console) -> int:
    workload = options.mix.workload()
    with _field(options, workload) as field:
        results = compare(field.contenders, workload, options.repetitions, options.warmup, progress)
    progress.end()
    subject = field.subject
    title = f"{subject.model}, {subject.server or 'in process'}"
    _write(options.json, serving_report(field.kind, subject, workload, results))
    if options.png is not None:
        from llmc.serve.load.picture import draw  # matplotlib takes a second

        draw(results, title, options.png)
    console.print(f"{title}, prompts: {subject.prompts}", soft_wrap=True)
    for part in serving_tables(results, against_first=field.kind == "ablation"):
        console.print(part, soft_wrap=isinstance(part, str), highlight=False)
    return _told_failures(results)


@contextmanager
def _field(options: BenchOptions, workload: Workload) -> Iterator[_Field]:
    loads = options.loads(workload.requests)
    machine = None if options.engine is None else _machine(options, options.engine)
    slo = parse_slo(options.slo) if options.slo is not None else None

    def contender(name: str, target: Target, load: Load) -> Contender:
        batch = load.concurrency or options.load.max_batch or DEFAULT_CONCURRENCY
        return Contender(name, target, load, Terms(batch, slo, options.price_per_hour, machine))

    if options.ablate:
        assert options.engine is not None
        plan, concurrency = workload.plan(loads[0]), loads[0].concurrency or DEFAULT_CONCURRENCY
        with ablations(options.engine, options.load, plan, concurrency) as found:
            contenders = [contender(variant.name, variant.target, loads[0]) for variant in found]
            yield _Field("ablation", _subject(options.engine), contenders)
    elif options.in_process:
        assert options.engine is not None
        with _engine(options, options.engine) as engine:
            target = InProcess(engine)
            yield _Field("in process", _subject(options.engine), [contender(load.name, target, load) for load in loads])
    else:
        with serving(options) as server:
            yield _Field("serving", server.subject, [contender(load.name, server, load) for load in loads])


def _offline(options: BenchOptions, progress: Progress, console: Console) -> int:
    mix, folder = options.mix, options.engine
    assert folder is not None
    if not (mix.prompt_len.isdigit() and mix.output_len.isdigit()):
        raise BenchRefused("--offline has one length: give numbers to --prompt-len and --output-len")
    wanted = cases(parse_batches(options.batches), int(mix.prompt_len), int(mix.output_len))
    with _engine(options, folder, scheduling=SchedulingOptions(chunked=False)) as engine:  # nobody runs ahead
        speeds = measure_cases(engine, wanted, options.repetitions, mix.seed, _machine(options, folder), progress)
    progress.end()
    _write(options.json, offline_report(_subject(folder), speeds))
    console.print(offline_table(speeds), highlight=False)
    return 0


def _engine(options: BenchOptions, folder: Path, **others: Any) -> Engine:
    given = {name: value for name, value in asdict(options.load).items() if value is not None}
    return Engine.load(folder, **given, **others)


def _machine(options: BenchOptions, folder: Path) -> Machine | None:
    target = choose_target(folder, read_manifest(folder), ThisMachine.this(), options.load.device).target
    return machine_of(folder / "report.json", target, options.limits)


def _subject(folder: Path) -> Subject:
    return Subject(str(folder), read_manifest(folder).model.name, None, "token ids")


def _write(path: Path | None, report: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(to_json(report))


def _told_failures(results: Sequence[Result]) -> int:
    failures: Counter[str] = sum((result.errors for result in results), Counter())
    if not failures:
        return 0
    print(f"llmc bench: {failures.total()} requests failed; the figures are those of the others", file=sys.stderr)
    return EXIT_FAILED
