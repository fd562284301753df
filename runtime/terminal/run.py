"""`llmc run`: one answer, or a chat, streamed to a terminal.

The command line is read by llmc.compiler.commands.cli.
"""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from llmc.runtime.artifact.manifest import CPU
from llmc.runtime.errors import RequestError
from llmc.runtime.loop.engine import Engine
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import Completion
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.terminal.console import Interrupts, printable
from llmc.runtime.text.chat import Message

EXIT_INTERRUPTED = 130
_LEFT_OUT = "[the context is full: the oldest {} messages are left out from now on]\n"


@dataclass(frozen=True)
class RunOptions:
    """What `llmc run` was asked for. None: the model's own setting, or the engine's default."""

    engine: Path
    prompt: str | None = None  # None: interactive
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    raw: bool = False  # continue plain text instead of chatting
    quiet: bool = False  # print the answer's text alone
    threads: int | None = None
    device: str | None = None  # a kind of target: cpu or cuda


def run(options: RunOptions, out: TextIO | None = None, read_line: Callable[[str], str] = input) -> int:
    """Run the command; returns its exit code. Raises RuntimeFailure with a one-line message.

    `read_line(prompt)` gives the chat's next line and raises EOFError at its end, as `input` does.
    """
    out = out or sys.stdout
    with Engine.load(options.engine, threads=options.threads, max_batch=1, device=options.device) as engine:
        if engine.artifact.target.kind == CPU and not options.quiet:
            for reason in engine.artifact.passed_over:
                print(f"on the CPU: {reason}", file=sys.stderr)
        session = _Session(engine, options, out)
        if options.prompt is not None:
            return session.answer_once(options.prompt)
        if read_line is input and sys.stdin.isatty():
            with contextlib.suppress(ImportError):  # line editing for `input`, where Python has it
                import_module("readline")
        return session.chat(read_line)


def describe_timing(completion: Completion) -> str:
    """One line of figures: TTFT, TPOT = (E2E - TTFT) / (N - 1), prefill and decode tokens per second."""
    timing, count = completion.timing, len(completion.token_ids)
    parts = [
        f"{completion.prompt_len} prompt + {count} tokens",
        f"TTFT {timing.ttft * 1e3:.1f} ms",
        f"prefill {completion.prompt_len / timing.ttft:.1f} tok/s",
    ]
    tpot = timing.tpot(count)
    if tpot:
        parts += [f"TPOT {tpot * 1e3:.2f} ms", f"decode {1 / tpot:.1f} tok/s"]
    return " | ".join(parts)


class _Session:
    def __init__(self, engine: Engine, options: RunOptions, out: TextIO) -> None:
        self._engine = engine
        self._options = options
        self._out = out
        chosen: dict[str, Any] = {
            "max_tokens": options.max_tokens,
            "temperature": options.temperature,
            "seed": options.seed,
        }
        stated = {name: value for name, value in chosen.items() if value is not None}
        self._params: SamplingParams = engine.sampling(**stated)
        if not options.raw:
            _ = engine.chat_template  # say now, not after the first line, that there is none

    def answer_once(self, prompt: str) -> int:
        completion = self._stream(self._prompt_ids([{"role": "user", "content": prompt}])[0])
        if completion.error is not None:
            raise completion.error
        return EXIT_INTERRUPTED if completion.finish_reason is FinishReason.CANCELLED else 0

    def chat(self, read_line: Callable[[str], str]) -> int:
        if not self._options.quiet:
            model = self._engine.manifest.model
            self._out.write(f"{model.name} ({model.dtype}); Ctrl-C stops an answer, Ctrl-D ends\n")
        messages: list[Message] = []
        while True:
            try:
                line = read_line("" if self._options.quiet else "> ")
            except EOFError:
                self._out.write("\n")
                return 0
            except KeyboardInterrupt:
                self._out.write("\n")
                continue
            if not line.strip():
                continue
            if self._options.raw:
                messages = []  # each line is a text of its own
            messages.append({"role": "user", "content": line})
            if not self._one_turn(messages):
                messages.pop()

    def _one_turn(self, messages: list[Message]) -> bool:
        """Whether the last message was answered; a refused one is explained and leaves the chat as it was."""
        try:
            ids, kept = self._prompt_ids(messages)
            left_out = len(messages) - len(kept)
            completion = self._stream(ids, _LEFT_OUT.format(left_out) if left_out else "")
            if completion.error is not None:
                raise completion.error
        except RequestError as error:
            self._out.write(f"error: {error}\n")
            return False
        messages[:] = kept
        messages.append({"role": "assistant", "content": completion.text})
        return True

    def _prompt_ids(self, messages: list[Message]) -> tuple[list[int], list[Message]]:
        """Of as many messages as the context holds, and these."""
        if self._options.raw:
            return self._engine.encode(messages[-1]["content"]), messages
        fitted = self._engine.fit_chat(messages, self._params.max_tokens)
        return fitted.ids, fitted.messages

    def _stream(self, ids: list[int], notice: str = "") -> Completion:
        handle = self._engine.submit(ids, self._params)
        if notice and not self._options.quiet:
            self._out.write(notice)
        with Interrupts() as interrupts:
            for output in handle:
                self._out.write(printable(output.text, self._out))
                self._out.flush()
                if interrupts.seen:
                    handle.cancel()
        completion = handle.result()
        self._out.write("\n")
        if not self._options.quiet:
            self._out.write(f"[{describe_timing(completion)}]\n")
        self._out.flush()
        return completion
