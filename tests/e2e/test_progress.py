"""What a long command shows: bars that move and end on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from llmc.compiler.commands import progress_console
from llmc.compiler.commands.progress_console import amount_text, shown
from llmc.compiler.progress import BYTES, Progress


def work(progress: Progress) -> None:
    """Stages as a build has them: two of unknown size, one of kernels, one of bytes."""
    progress.stage("reading")
    progress.stage("compiling")
    for done in range(1, 4):
        progress.amount(done, 3, "kernels")
    progress.stage("packing")
    progress.amount(500_000, 1_500_000, BYTES)
    progress.amount(1_500_000, 1_500_000, BYTES)
    progress.stage("flushing")


def test_a_terminal_has_a_bar_for_each_stage_and_all_of_them_end() -> None:
    out = io.StringIO()
    with shown(Console(file=out, force_terminal=True, width=100)) as progress:
        work(progress)
    text = re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    last = [line.rstrip() for line in text.splitlines()[-4:]]
    assert [line.split()[0] for line in last] == ["reading", "compiling", "packing", "flushing"]
    full = "━" * 24
    assert all(full in line for line in last), last
    assert "3 of 3 kernels" in last[1] and "1.50 MB of 1.50 MB" in last[2]
    for line in (last[0], last[3]):  # no figures where a stage has none
        assert re.fullmatch(rf"\w+ +{full} +\d:\d\d:\d\d", line), line


def test_elsewhere_there_is_a_line_for_each_stage() -> None:
    out = io.StringIO()
    with shown(Console(file=out)) as progress:
        work(progress)
    assert out.getvalue() == "reading\ncompiling\npacking\nflushing\n"


def test_a_long_stage_has_more_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress_console.time, "monotonic", lambda: now)
    out = io.StringIO()
    with shown(Console(file=out)) as progress:
        progress.stage("packing")
        for second in range(0, 25, 4):
            now = float(second)
            progress.amount(second * 10**9, 24 * 10**9, BYTES)
    assert out.getvalue() == "packing\npacking: 12.0 GB of 24.0 GB\n"


def test_amounts() -> None:
    assert amount_text(3, 40, "kernels") == "3 of 40 kernels"
    assert amount_text(0, 132_000, BYTES) == "0 of 132 kB"
