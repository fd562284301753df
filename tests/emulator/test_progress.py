"""What is said while the emulator compiles."""

from __future__ import annotations

import io
import time

import pytest

from llmc.emulator import progress
from llmc.emulator.progress import shown


def test_what_is_over_soon_is_not_mentioned() -> None:
    out = io.StringIO()
    with shown("compiling", out) as tell:
        tell(3, 3)
    assert out.getvalue() == ""


def test_a_pipe_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_LINE_SECONDS", 0.01)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    out = io.StringIO()

    def wait_for(line: str) -> None:
        deadline = time.monotonic() + 10
        while not out.getvalue().endswith(line + "\n"):
            assert time.monotonic() < deadline, out.getvalue()
            time.sleep(0.001)

    with pytest.raises(ZeroDivisionError), shown("compiling", out) as tell:
        wait_for("compiling")
        tell(1, 3)
        wait_for("compiling: 1 of 3")
        raise ZeroDivisionError
    said = out.getvalue()
    time.sleep(0.05)
    assert out.getvalue() == said


def test_a_terminal_gets_a_bar_that_goes() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    with shown("compiling", out) as tell:
        tell(1, 3)
        tell(3, 3)
    assert "compiling" in out.getvalue() and "3/3" in out.getvalue() and "━" in out.getvalue()
    assert out.getvalue().endswith("\x1b[2K")
