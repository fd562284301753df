"""A chat at a terminal: its commands, messages of several lines, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmc.runtime import Engine
from llmc.runtime.artifact.artifact import read_manifest, seal
from llmc.runtime.errors import ChatTemplateError
from llmc.runtime.terminal.run import RunOptions, run
from llmc.runtime.terminal.typed_messages import Typed, read_message, read_text
from tests.runtime.engine_folders import MakeEngine

SYSTEM_TEMPLATE = "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}|{% endfor %}"
NO_SYSTEM_TEMPLATE = "{% for m in messages if m['role'] != 'system' %}{{ m['content'] }}|{% endfor %}"
REFUSING_TEMPLATE = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role') }}{% endif %}"


def chat(options: RunOptions, *lines: str | type[BaseException]) -> tuple[list[str], str]:
    """The answers of a chat in which these lines were typed, and everything else that was said."""
    waiting: Iterator[str | type[BaseException]] = iter(lines)

    def read_line(prompt: str) -> str:
        line = next(waiting, EOFError)
        if isinstance(line, str):
            return line
        raise line

    out, notices = io.StringIO(), io.StringIO()
    assert run(options, out, read_line, notices) == 0
    assert next(waiting, None) is None, "the chat ended before its lines did"
    return out.getvalue().splitlines(), notices.getvalue()


def expected(folder: Path, *texts: str, system: str | None = None, **fields: Any) -> list[str]:
    """The answers of a chat of these messages, by the engine itself."""
    messages = [{"role": "system", "content": system}] if system else []
    answers = []
    with Engine.load(folder) as engine:
        for text in texts:
            messages.append({"role": "user", "content": text})
            answers.append(engine.generate([engine.encode_chat(messages)], **{"max_tokens": 5, **fields})[0].text)
            messages.append({"role": "assistant", "content": answers[-1]})
    return answers


@pytest.fixture
def options(shared_engine: Path) -> RunOptions:
    return RunOptions(shared_engine, max_tokens=5)


def test_commands_are_not_sent(options: RunOptions) -> None:
    answers, said = chat(options, "/help", "/nonsense x", "/", "/Help", "one")
    assert answers == expected(options.engine, "one")
    for name in ("/clear", "/set system TEXT", "/read FILE", "/bye", "Ctrl-C"):
        assert name in said
    assert "error: /nonsense is no command, and was not sent; /help lists them" in said
    assert "error: / is no command" in said and "error: /Help is no command" in said


def test_a_space_or_quotes_make_a_slash_text(options: RunOptions) -> None:
    answers, _ = chat(options, " /help", '"""/help"""')
    assert answers == expected(options.engine, " /help", "/help")


def test_clear_forgets(options: RunOptions) -> None:
    answers, said = chat(options, "one", "/clear", "two")
    assert answers == [*expected(options.engine, "one"), *expected(options.engine, "two")]
    assert "forgotten" in said


@pytest.mark.parametrize("leave", ["/bye", "/exit", "/quit"])
def test_leaving(options: RunOptions, leave: str) -> None:
    assert chat(options, leave) == ([], "reference (f32); /help lists the commands, Ctrl-C stops an answer\n")


def test_the_banner_says_what_the_weights_were_made_of(shared_engine: Path, tmp_path: Path) -> None:
    for report, said in (
        ({"model": {"stored_as": "Q4_1 x210"}}, "reference (f32, made of Q4_1 x210); /help"),
        ({"model": {"stored_as": None}}, "reference (f32); /help"),
        ([], "reference (f32); /help"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(shared_engine, folder)
        (folder / "manifest.json").unlink()
        (folder / "report.json").write_text(json.dumps(report))
        seal(folder, read_manifest(shared_engine))
        assert chat(RunOptions(folder), "/bye")[1].startswith(said)


def test_ctrl_d_leaves_and_ctrl_c_drops_what_was_typed(options: RunOptions) -> None:
    answers, _ = chat(options, "half \\", KeyboardInterrupt, '"""half', KeyboardInterrupt, "one", EOFError)
    assert answers == expected(options.engine, "one")


def test_ctrl_c_stops_the_answer_and_not_the_chat(options: RunOptions) -> None:
    class Interrupting(io.StringIO):
        def write(self, text: str) -> int:
            if text and self.tell() == 0:
                signal.raise_signal(signal.SIGINT)
            return super().write(text)

    lines = iter(["one", "/clear", "two"])
    out = Interrupting()

    def read_line(prompt: str) -> str:
        if (line := next(lines, None)) is None:
            raise EOFError
        return line

    assert run(RunOptions(options.engine, max_tokens=50, quiet=True), out, read_line) == 0
    (whole,), (second,) = (expected(options.engine, text, max_tokens=50) for text in ("one", "two"))
    assert out.getvalue().endswith(f"\n{second}\n")
    first = out.getvalue().removesuffix(f"\n{second}\n")
    assert len(first) < 10 and whole.startswith(first)


def test_the_system_message(make_engine: MakeEngine, tmp_path: Path) -> None:
    folder = make_engine(template=SYSTEM_TEMPLATE)
    options = RunOptions(folder, max_tokens=5, system="brief")
    answers, _ = chat(
        options, "one", "/clear", '/set system """long', 'winded"""', "one", "/clear", "/set system", "one"
    )
    systems = ("brief", "long\nwinded", None)
    assert answers == [a for system in systems for a in expected(folder, "one", system=system)]
    out = io.StringIO()
    assert run(RunOptions(folder, "one", system="brief", max_tokens=5), out) == 0
    assert out.getvalue().splitlines() == expected(folder, "one", system="brief")


@pytest.mark.parametrize(
    ("template", "why"),
    [(NO_SYSTEM_TEMPLATE, "no place for a system"), (REFUSING_TEMPLATE, "No system role")],
)
def test_a_system_message_that_the_template_does_not_take(make_engine: MakeEngine, template: str, why: str) -> None:
    folder = make_engine(template=template)
    with pytest.raises(ChatTemplateError, match=why):
        run(RunOptions(folder, "one", system="brief"), io.StringIO())
    _, said = chat(RunOptions(folder, max_tokens=5), "/set system brief")
    assert why in said


def test_settings_change(options: RunOptions) -> None:
    answers, said = chat(
        options,
        "/set parameter max_tokens 3",
        "/set parameter stop zz",
        "/set parameter top_k many",
        "/set parameter temperature -1",
        "/set parameter mirostat 2",
        "/set parameter seed",
        "/show",
        "one",
    )
    assert answers == expected(options.engine, "one", max_tokens=3, stop=("zz",))
    assert "top_k must be an integer, got 'many'" in said
    assert "temperature, unless 0, must be in" in said
    assert "'mirostat' is no setting; there are temperature, " in said
    assert "expected /set system TEXT or /set parameter NAME VALUE" in said
    assert "  max_tokens: 3\n" in said and "  stop: ('zz',)\n" in said and "  system: none\n" in said


def test_files_are_sent_with_the_next_message(options: RunOptions, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text\n")
    (tmp_path / "b").write_bytes(b"\xff")
    lines = (f"/read {tmp_path / 'a'}", f"/read {tmp_path / 'b'}", "/read /nowhere", "one", "two")
    answers, said = chat(options, *lines)
    assert answers == expected(options.engine, "text\n\none", "two")
    assert "4 characters, sent with the next message" in said
    assert "not a text in UTF-8" in said and "/nowhere" in said


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["one"], "one"),
        (["one\\", "two\\", "three"], "one\ntwo\nthree"),
        (['"""one"""'], "one"),
        (['"""', "one", "", "  two", '"""'], "one\n\n  two"),
        ([' """one ', 'two"""  '], "one \ntwo"),
        (['""""""'], ""),
        (['say """this"""'], 'say """this"""'),
    ],
)
def test_typed_messages(lines: list[str], text: str) -> None:
    waiting, prompts = list(lines), []

    def read_line(prompt: str) -> str:
        prompts.append(prompt)
        return waiting.pop(0)

    typed = read_message(read_line, "> ", "... ")
    assert typed.text.lstrip() == text.lstrip() and not typed.is_command and waiting == []
    assert prompts == ["> ", *["... "] * (len(lines) - 1)]


def test_a_file_that_opens_but_cannot_be_read_is_named() -> None:
    with pytest.raises(OSError) as raised:
        read_text(Path("/proc/self/mem"))
    assert raised.value.filename == "/proc/self/mem"


def test_a_command_may_hold_a_block() -> None:
    waiting = ['/set system """a', 'b"""']
    assert read_message(lambda _: waiting.pop(0), "", "") == Typed("/set system a\nb", is_command=True)


def test_on_a_terminal(shared_engine: Path) -> None:
    """Pasted lines are one message; stdout may be elsewhere and gets the answers alone."""
    script = "import sys; from pathlib import Path; from llmc.runtime.terminal.run import RunOptions, run;"
    script += "sys.exit(run(RunOptions(Path(sys.argv[1]), max_tokens=5)))"
    main, terminal = pty.openpty()
    command = [sys.executable, "-c", script, str(shared_engine)]
    with subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, stderr=terminal) as process:
        os.close(terminal)
        said = b""
        for typed, until in ((b"one\r", rb"> $"), (b"\x04", rb"tok/s\]\r\n> $")):
            while not re.search(until, said):
                said += os.read(main, 4096)
            os.write(main, typed)
        assert process.stdout is not None
        assert process.stdout.read().decode().splitlines() == expected(shared_engine, "one")
        assert process.wait() == 0
    os.close(main)
