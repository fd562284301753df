"""Files that comments, documents and messages name by their path are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("ir", "compiler", "passes", "codegen", "runtime", "templates", "emulator", "tests", "bench", "docs")
ENDINGS = ("py", "cuh", "j2", "h", "cpp", "md")
PATH = re.compile(rf"(?<![\w/.<-])((?:{'|'.join(FOLDERS)})/[\w/.-]+\.(?:{'|'.join(ENDINGS)}))\b")


def texts() -> list[Path]:
    inside = (p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix[1:] in ENDINGS)
    return sorted([*inside, *ROOT.glob("*.md")])


def test_paths_that_are_named_exist() -> None:
    assert len(texts()) > 400
    gone = {
        f"{text.relative_to(ROOT)}: {named}"
        for text in texts()
        for named in PATH.findall(text.read_text())
        if not (ROOT / named).exists()
    }
    assert not gone
