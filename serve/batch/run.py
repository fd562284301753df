"""`llmc batch`: a file of requests in, a file of answers out, to be run again until it is there.

The output appears whole, in the order of the input; until then the answers are in a journal beside it. Whatever ends a
run, the same command goes on, and what comes out is what one run would have made, byte for byte.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from llmc.runtime.artifact.artifact import EngineFiles, read_manifest
from llmc.runtime.process.engine_process import EngineProcess
from llmc.runtime.step.limits import LoadOptions
from llmc.serve.batch.answers import Identity, is_failed
from llmc.serve.batch.drive import answer_lines
from llmc.serve.batch.failure import BatchRefused, BatchStopped
from llmc.serve.batch.journal import Journal
from llmc.serve.batch.lines import BatchInput, read_input
from llmc.serve.batch.progress import BatchProgress

_VERSION = 1  # of journals and of what is derived from a line
FACTS = 0  # the number of a record that is of no line


@dataclass(frozen=True)
class BatchOptions:
    """`name` is what the requests call the engine at `folder`."""

    name: str
    folder: Path
    input: Path
    output: Path
    device: str | None = None
    load: LoadOptions = field(default_factory=LoadOptions)


def batch(options: BatchOptions, console: Console) -> None:
    """Raises BatchRefused, BatchStopped, RuntimeFailure, OSError."""
    digest = EngineFiles(options.folder, read_manifest(options.folder)).files_digest
    lines = read_input(options.input)
    journal_path = options.output.with_name(f"{options.output.name}.journal")
    say = _speaker(console)
    if options.output.exists():
        check_finished(options.output, digest, lines)
        journal_path.unlink(missing_ok=True)  # a run ended between its last two acts
        say(f"{options.output} is finished already: {len(lines.lines)} lines")
        return
    with Journal.open(journal_path, _header(options, digest, lines)) as journal:
        there = [journal.line(line.number) for line in lines.lines if line.number in journal]
        progress = BatchProgress(console, len(lines.lines), len(there), sum(map(is_failed, there)))
        if there:
            say(f"going on: {len(there)} of {len(lines.lines)} lines are answered")
        if len(there) < len(lines.lines):
            with progress:
                asyncio.run(_answer(options, lines, journal, progress.answered))
        journal.finish(options.output, [line.number for line in lines.lines])
    failed = f", {progress.num_failed} of them errors" if progress.num_failed else ""
    say(f"{options.output}: {len(lines.lines)} lines{failed}")


async def _answer(
    options: BatchOptions, lines: BatchInput, journal: Journal, answered: Callable[[bytes], None]
) -> None:
    async with await EngineProcess.start(
        {options.name: options.folder}, options.load, device=options.device
    ) as process:
        facts = process.engine.facts
        settle_facts(journal, {"engine": facts.digest, "target": facts.target, "max_len": facts.max_len})
        await answer_lines(process, lines, journal, answered)


def settle_facts(journal: Journal, facts: dict[str, Any]) -> None:
    """What else answers depend on is what it was when the batch began. Raises BatchStopped."""
    if FACTS not in journal:
        journal.append(FACTS, orjson.dumps(facts))
        return
    before = orjson.loads(journal.line(FACTS))
    for name, value in facts.items():
        if before[name] != value:
            raise BatchStopped(
                f"{journal.path}: the batch began with {name} {before[name]}, now it is {value}; "
                "run it as it began, or take the file away to begin anew"
            )


def check_finished(output: Path, engine_digest: str, lines: BatchInput) -> None:
    """Whether every line of the output is the answer to the input's by this engine. Raises BatchRefused."""
    with output.open("rb") as file:
        for line in lines.lines:
            expected = Identity(engine_digest, line).request
            if _id(file.readline()) != expected:
                raise BatchRefused(
                    f"{output} is there, and has no answer of this engine to line {line.number} of {lines.path} "
                    "where it should be: it is of another engine or input; name another output, or take it away"
                )
        if file.read(1):
            raise BatchRefused(f"{output} is there, and has more lines than {lines.path}: it is of another input")


def _id(line: bytes) -> str | None:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return value.get("id") if isinstance(value, dict) else None


def _header(options: BatchOptions, digest: str, lines: BatchInput) -> dict[str, Any]:
    return {"llmc_batch": _VERSION, "input": lines.digest, "engine": digest, "model name": options.name}


def _speaker(console: Console) -> Callable[[str], None]:
    return lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True)
