"""docs/formats.md's table is what builds decide, for every format on every target."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from llmc.compiler.formats_table import cell, in_text, rows
from llmc.compiler.sources.published import Published
from llmc.compiler.targets.find import find_target
from llmc.ir.formats import Numbers, Scheme
from llmc.ir.types import DType

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "formats.md"


def test_the_table_is_current() -> None:
    text = DOCUMENT.read_text()
    assert in_text(text) == text, "python -m llmc.compiler.formats_table docs/formats.md"


def test_a_document_without_marks_is_no_document() -> None:
    with pytest.raises(ValueError, match="table: begin"):
        in_text("nothing")


def test_rows_are_told_apart_and_say_why() -> None:
    assert [key for key, count in Counter((r.source, r.form) for r in rows()).items() if count > 1] == []
    for row in rows():
        assert (row.numbers is None) == bool(row.instead)
        if row.numbers is not None:
            assert Scheme.of(row.numbers)


def test_a_cell_is_what_the_target_says() -> None:
    cpu, gpu = find_target("generic"), find_target("h100")
    int8 = Published("x", "y", Numbers(DType.I8, 0))
    assert (cell(int8, cpu), cell(int8, gpu)) == ("exact", "no kernel")
    assert gpu.refuses(Scheme.INT8) is not None and gpu.refuses(Scheme.BF16) is None
    assert cell(Published("x", "y", None, "why"), gpu) == "rounded"
    assert cell(Published("x", "y", None, "why", refused=True), cpu) == "refused"
