"""`llmc run`: what is printed, what is kept, and what Ctrl-C does."""

import contextlib
import io
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import reference_oracle as oracle

from llmc.runtime import Engine
from llmc.runtime.errors import ChatTemplateError, InvalidParameter, NonFiniteLogits, NotAnEngine, RequestError
from llmc.runtime.terminal.console import Interrupts, Waiting, printable
from llmc.runtime.terminal.run import EXIT_INTERRUPTED, RunOptions, run
from llmc.runtime.terminal.session import SETTINGS

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
    out, notices = io.StringIO(), io.StringIO()
    assert run(RunOptions(shared_engine, "the", max_tokens=12), out, notices=notices) == 0
    assert out.getvalue() == expected.text + "\n"
    assert int(re.fullmatch(FIGURES + "\n", notices.getvalue())[1]) == len(expected.token_ids)
    out, notices = io.StringIO(), io.StringIO()
    assert run(RunOptions(shared_engine, "the", max_tokens=12, quiet=True), out, notices=notices) == 0
    assert (out.getvalue(), notices.getvalue()) == (expected.text + "\n", "")


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
    assert out.getvalue() == f"{first}\n{second}\n"


def test_a_refused_line_leaves_the_chat_as_it_was(shared_engine):
    out, reference, notices = io.StringIO(), io.StringIO(), io.StringIO()
    options = RunOptions(shared_engine, max_tokens=5)
    run(options, out, lines_of("one", "x" * 300, KeyboardInterrupt(), "two"), notices)
    run(options, reference, lines_of("one", KeyboardInterrupt(), "two"))
    assert out.getvalue() == reference.getvalue()
    said = notices.getvalue().splitlines()
    assert said[0] == "reference (f32); /help lists the commands, Ctrl-C stops an answer"
    assert [line for line in said if line.startswith("error: ") and "max_seq_len is 256" in line]


def test_errors_reach_the_caller(make_engine, tmp_path):
    with pytest.raises(NotAnEngine):
        run(RunOptions(tmp_path / "absent", "x"), io.StringIO())
    folder = make_engine(template=None)
    for prompt in ("x", None):
        with pytest.raises(ChatTemplateError, match="--raw"):
            run(RunOptions(folder, prompt), io.StringIO(), lines_of())
    with pytest.raises(InvalidParameter, match="temperature"):
        run(RunOptions(folder, "x", temperature=-1, raw=True), io.StringIO())


def test_what_can_be_refused_is_refused_before_anything_is_loaded(tmp_path):
    for options, expected in (
        ({"temperature": -1}, "temperature"),
        ({"min_p": 2}, "min_p"),
        ({"system": "x", "raw": True}, "--system, or --raw"),
        ({"file": tmp_path / "binary"}, "binary: not a text in UTF-8: invalid start byte at byte 1"),
    ):
        (tmp_path / "binary").write_bytes(b"a\xff")
        with pytest.raises(RequestError, match=expected):
            run(RunOptions(tmp_path / "absent", "x", **options), io.StringIO())
    with pytest.raises(FileNotFoundError, match="no-file"):
        run(RunOptions(tmp_path / "absent", file=tmp_path / "no-file"), io.StringIO())


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


def test_every_sampling_flag_reaches_the_request(shared_engine):
    stated = {
        "max_tokens": 12,
        "temperature": 0.9,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "seed": 3,
        "stop": ("q", "zz"),
    }
    assert set(stated) == set(SETTINGS) <= set(RunOptions.__dataclass_fields__)
    expected = answer(shared_engine, [{"role": "user", "content": "the"}], **stated).text
    out = io.StringIO()
    assert run(RunOptions(shared_engine, "the", quiet=True, **stated), out) == 0
    assert out.getvalue() == expected + "\n"


def test_settings_that_a_greedy_model_does_not_use_are_said(shared_engine):
    notices = io.StringIO()
    run(RunOptions(shared_engine, "the", max_tokens=2, top_k=3, seed=1), io.StringIO(), notices=notices)
    assert "--top-k, --seed: without effect, for this model is greedy by default" in notices.getvalue()
    notices = io.StringIO()
    run(RunOptions(shared_engine, "the", max_tokens=2, top_k=3, temperature=0), io.StringIO(), notices=notices)
    assert "without effect" not in notices.getvalue()


def test_a_file_comes_before_the_prompt(shared_engine, tmp_path):
    (tmp_path / "text").write_text("of a file\n")
    for prompt, content in ((None, "of a file"), ("the", "of a file\n\nthe")):
        expected = answer(shared_engine, [{"role": "user", "content": content}], max_tokens=9).text
        out = io.StringIO()
        run(RunOptions(shared_engine, prompt, tmp_path / "text", max_tokens=9, quiet=True), out)
        assert out.getvalue() == expected + "\n"


@pytest.mark.parametrize(
    "given", ["RunOptions(engine, max_tokens=9)", "RunOptions(engine, 'b', Path('-'), max_tokens=9)"]
)
def test_a_pipe_is_one_prompt_and_gets_the_answer_alone(shared_engine, given):
    script = "import sys; from pathlib import Path; from llmc.runtime.terminal.run import RunOptions, run;"
    script += f"engine = Path(sys.argv[1]); sys.exit(run({given}))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(shared_engine)], input=b"two\nlines\n", capture_output=True
    )
    alone = "'b'" not in given
    content = "two\nlines" if alone else "two\nlines\n\nb"
    expected = answer(shared_engine, [{"role": "user", "content": content}], max_tokens=9).text
    assert (done.returncode, done.stdout.decode()) == (0, expected + "\n"), done.stderr
    assert done.stderr == b"" if alone else done.stderr.startswith(b"[")  # figures: only where a person asked


def screen(main, seconds):
    """What a terminal has been sent after a while."""
    os.set_blocking(main, False)
    time.sleep(seconds)
    with contextlib.suppress(BlockingIOError):
        return os.read(main, 65536).decode()
    return ""


def test_a_terminal_is_told_what_takes_long(monkeypatch):
    monkeypatch.setattr("llmc.runtime.terminal.console.WAITED_SECONDS", 0.05)
    main, terminal = pty.openpty()
    with open(terminal, "w") as stream:
        with Waiting("loading [b]x[/b]", stream) as waiting:
            first, later = screen(main, 0.6), screen(main, 0.3)
            assert "loading [b]x[/b]" in first and "0:00:00" in first
            assert "━" in later, "it moves"
            waiting.over()
            assert screen(main, 0).endswith("\x1b[2K"), "and leaves an empty line"
            assert screen(main, 0.2) == ""
        with Waiting("soon over", stream):
            pass
        assert screen(main, 0.1) == ""
    os.close(main)
    with Waiting("nobody looks", out := io.StringIO()):
        time.sleep(0.1)
    assert out.getvalue() == ""


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
    out, notices = io.StringIO(), io.StringIO()
    typed = lines_of(*(f"{n} " + "x" * 40 for n in range(6)))
    run(RunOptions(shared_engine, max_tokens=30, system="S"), out, typed, notices)
    said = notices.getvalue()
    assert "error" not in said and said.count("TTFT") == 6
    # Of 256 tokens a turn takes 43 + 30 and what the template writes: from the third on one goes for each that comes.
    left_out = re.findall(r"the context is full: the oldest (\d+) messages are left out", said)
    assert left_out == ["2", "4", "6", "8"]
