"""`llmc run`: one answer, or a chat, streamed. The answer is all that goes to stdout; the rest goes to stderr.

The command line is read by llmc.compiler.commands.cli.
"""

import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from llmc.runtime.artifact.manifest import CPU
from llmc.runtime.errors import InvalidParameter
from llmc.runtime.loop.engine import Engine
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.terminal.console import Waiting
from llmc.runtime.terminal.conversation import Conversation
from llmc.runtime.terminal.session import SETTINGS, Session
from llmc.runtime.terminal.typed_messages import ReadLine, read_text, terminal_reader, text_of

EXIT_INTERRUPTED = 130
STDIN = Path("-")
REPORT = "report.json"


@dataclass(frozen=True)
class RunOptions:
    """What `llmc run` was asked for. None: the model's own setting, or the engine's default.

    `prompt` and `file` make one text, the file first; without either, the whole of a piped stdin is it, and at a
    terminal there is a chat.
    """

    engine: Path
    prompt: str | None = None
    file: Path | None = None  # STDIN: standard input
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    raw: bool = False  # continue plain text instead of chatting
    quiet: bool = False  # the answers alone
    threads: int | None = None
    device: str | None = None  # a kind of target: cpu or cuda

    @property
    def stated(self) -> dict[str, Any]:
        """The fields of SamplingParams that were given."""
        given = {name: getattr(self, name) for name in SETTINGS}
        return {name: value for name, value in given.items() if value is not None and value != ()}


def run(
    options: RunOptions,
    out: TextIO | None = None,
    read_line: ReadLine | None = None,
    notices: TextIO | None = None,
) -> int:
    """Run the command; returns its exit code. Raises RuntimeFailure or OSError with a one-line message.

    `read_line` gives the lines of a chat; by default they come from the terminal, where stdin is one.
    """
    out, notices = out or sys.stdout, notices or sys.stderr
    # Before a large engine is loaded, and a long text is waited for.
    SamplingParams(**options.stated)
    if options.raw and options.system:
        raise InvalidParameter("a system message is a part of the chat template: leave out --system, or --raw")
    asked = _asked(options)
    piped = asked is None and read_line is None and not sys.stdin.isatty()
    if piped:
        asked = _read(STDIN)
    quiet = options.quiet or piped
    with _load(options, notices) as engine:
        if engine.artifact.target.kind == CPU and not quiet:
            for reason in engine.artifact.passed_over:
                print(f"on the CPU: {reason}", file=notices)
        session = Session(
            engine, options.stated, out, notices, system=options.system, raw=options.raw, figures=not quiet
        )
        if piped and not asked:
            return 0
        if asked is not None:
            completion = session.answer([{"role": "user", "content": asked}])
            return EXIT_INTERRUPTED if completion.finish_reason is FinishReason.CANCELLED else 0
        if not quiet:
            session.notice(f"{_describe(engine)}; /help lists the commands, Ctrl-C stops an answer")
        Conversation(session, quiet).run(read_line or terminal_reader())
        return 0


def _describe(engine: Engine) -> str:
    """The model's name, what its weights are, and what they were made of, which the build's report tells."""
    model = engine.manifest.model
    stored = None
    if engine.artifact.has(REPORT):
        with contextlib.suppress(ValueError, LookupError, TypeError):  # a report of another version
            stored = json.loads(engine.artifact.read_bytes(REPORT))["model"]["stored_as"]
    return f"{model.name} ({model.dtype}{f', made of {stored}' if stored else ''})"


def _load(options: RunOptions, notices: TextIO) -> Engine:
    with Waiting(f"loading {options.engine}", notices):
        return Engine.load(options.engine, threads=options.threads, max_batch=1, device=options.device)


def _asked(options: RunOptions) -> str | None:
    """The text of the file and of the prompt; None where neither is given."""
    texts = [] if options.file is None else [_read(options.file)]
    if options.prompt is not None:
        texts.append(options.prompt)
    return "\n\n".join(texts) if texts else None


def _read(file: Path) -> str:
    return text_of(sys.stdin.buffer.read(), "standard input") if file == STDIN else read_text(file)
