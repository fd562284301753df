"""`llmc run`: what is printed, what is kept, and what Ctrl-C does."""

import io
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import reference_oracle as oracle

from llmc.runtime import Engine
from llmc.runtime.errors import ChatTemplateError, InvalidParameter, NonFiniteLogits, NotAnEngine
from llmc.runtime.terminal.console import Interrupts, printable
from llmc.runtime.terminal.run import EXIT_INTERRUPTED, RunOptions, run

FIGURES = (
    r"\[\d+ prompt \+ (\d+) tokens \| TTFT [\d.]+ ms \| prefill [\d.]+ tok/s"
    r" \| TPOT [\d.]+ ms \| decode [\d.]+ tok/s\]"
)


def answer(folder, messages, **fields):
    with Engine.load(folder) as engine:
        return engine.generate([engine.encode_chat(messages)], **fields)[0]


def lines_of(*lines):
    waiting = list(lines)

    def read_line(prompt):
        if not waiting:
            raise EOFError
        line = waiting.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    return read_line


def test_one_answer_with_figures_and_without(shared_engine):
    expected = answer(shared_engine, [{"role": "user", "content": "the"}], max_tokens=12)
    out = io.StringIO()
    assert run(RunOptions(shared_engine, "the", max_tokens=12), out) == 0
    text, figures, end = out.getvalue().rpartition("\n[")[0], out.getvalue().splitlines()[-1], out.getvalue()[-1]
    assert text == expected.text and end == "\n"
    assert int(re.fullmatch(FIGURES, figures)[1]) == len(expected.token_ids)
    out = io.StringIO()
    assert run(RunOptions(shared_engine, "the", max_tokens=12, quiet=True), out) == 0
    assert out.getvalue() == expected.text + "\n"


def test_raw_seeded_sampling(shared_engine):
    with Engine.load(shared_engine) as engine:
        expected = engine.generate(["the"], max_tokens=12, temperature=1.2, seed=9)[0]
    out = io.StringIO()
    options = RunOptions(shared_engine, "the", max_tokens=12, temperature=1.2, seed=9, raw=True, quiet=True)
    assert run(options, out) == 0
    assert out.getvalue() == expected.text + "\n"


def test_a_chat_keeps_its_history(shared_engine):
    out = io.StringIO()
    run(RunOptions(shared_engine, max_tokens=5, quiet=True), out, lines_of("one", "", "two"))
    messages = [{"role": "user", "content": "one"}]
    first = answer(shared_engine, messages, max_tokens=5).text
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "two"}]
    second = answer(shared_engine, messages, max_tokens=5).text
    assert out.getvalue() == f"{first}\n{second}\n\n"


def test_a_refused_line_leaves_the_chat_as_it_was(shared_engine):
    out, reference = io.StringIO(), io.StringIO()
    run(RunOptions(shared_engine, max_tokens=5), out, lines_of("one", "x" * 300, KeyboardInterrupt(), "two"))
    run(RunOptions(shared_engine, max_tokens=5), reference, lines_of("one", KeyboardInterrupt(), "two"))
    error = next(line for line in out.getvalue().splitlines() if line.startswith("error: "))
    assert "max_seq_len is 256" in error
    without = re.sub(r"\[.*\]", "", out.getvalue().replace(error + "\n", ""))
    assert without == re.sub(r"\[.*\]", "", reference.getvalue())
    assert out.getvalue().startswith("reference (f32); Ctrl-C stops an answer, Ctrl-D ends\n")


def test_errors_reach_the_caller(make_engine, tmp_path):
    with pytest.raises(NotAnEngine):
        run(RunOptions(tmp_path / "absent", "x"), io.StringIO())
    folder = make_engine(template=None)
    for prompt in ("x", None):
        with pytest.raises(ChatTemplateError, match="--raw"):
            run(RunOptions(folder, prompt), io.StringIO(), lines_of())
    with pytest.raises(InvalidParameter, match="temperature"):
        run(RunOptions(folder, "x", temperature=-1, raw=True), io.StringIO())


def test_a_failing_model_is_an_error(shared_engine, monkeypatch):
    monkeypatch.setattr(Engine, "encode", lambda self, text: [oracle.POISON])
    with pytest.raises(NonFiniteLogits):
        run(RunOptions(shared_engine, "x", raw=True), io.StringIO())


def test_ctrl_c_stops_the_answer_between_steps(shared_engine):
    class Interrupting(io.StringIO):
        def write(self, text):
            if text and self.tell() == 0:
                signal.raise_signal(signal.SIGINT)
            return super().write(text)

    before = signal.getsignal(signal.SIGINT)
    out = Interrupting()
    code = run(RunOptions(shared_engine, "the", max_tokens=200, temperature=1, seed=1, quiet=True), out)
    assert code == EXIT_INTERRUPTED and signal.getsignal(signal.SIGINT) is before
    with Engine.load(shared_engine) as engine:
        ids = engine.encode_chat([{"role": "user", "content": "the"}])
        whole = engine.generate([ids], max_tokens=200, temperature=1, seed=1)[0].text
    assert len(out.getvalue()) < 10 and whole.startswith(out.getvalue().rstrip("\n"))


def test_a_second_ctrl_c_interrupts():
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.seen
        signal.raise_signal(signal.SIGINT)


def test_interrupts_outside_the_main_thread_are_not_ours():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with Interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_terminal_gets_no_control_characters():
    main, terminal = pty.openpty()
    with open(terminal, "w", encoding="ascii") as out:
        assert printable("a\x1b[2Jb\r\n\tc\x9bd\x7f é", out) == "a[2Jb\n\tcd ?"
    os.close(main)
    assert printable("a\x1bé", io.StringIO()) == "a\x1bé"


def test_streams_to_a_pipe(shared_engine):
    script = (
        "import sys; from pathlib import Path; from llmc.runtime.terminal.run import RunOptions, run;"
        "sys.exit(run(RunOptions(Path(sys.argv[1]), 'the', max_tokens=20, quiet=True)))"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", script, str(shared_engine)], capture_output=True, env=environment)
    assert done.returncode == 0 and done.stderr == b""
    expected = answer(shared_engine, [{"role": "user", "content": "the"}], max_tokens=20).text
    assert done.stdout == expected.encode("ascii", "replace") + b"\n"


def test_a_chat_whose_history_is_full_goes_on_without_its_oldest_turns(shared_engine: Path) -> None:
    out = io.StringIO()
    run(RunOptions(shared_engine, max_tokens=30), out, lines_of(*(f"{n} " + "x" * 40 for n in range(6))))
    shown = out.getvalue()
    assert "error" not in shown and shown.count("TTFT") == 6
    # Of 256 tokens a turn takes 43 + 30 and what the template writes: from the third on one goes for each that comes.
    assert shown.count("[the context is full: the oldest 2 messages are left out from now on]") == 4
