"""Files that comments, documents and messages name are there, by their path or by their name alone."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("ir", "compiler", "passes", "codegen", "runtime", "serve", "templates", "emulator", "tests", "bench", "docs")
ENDINGS = ("py", "cuh", "j2", "h", "cpp", "md")
PATH = re.compile(rf"(?<![\w/.<-])((?:{'|'.join(FOLDERS)})/[\w/.-]+\.(?:{'|'.join(ENDINGS)}))\b")

NAME = re.compile(r"(?<![\w/.<>{}*-])(\w+\.(?:py|cuh))\b")
COMMENT = re.compile(r'"""(?:.|\n)*?"""|(?:#|//)[^\n]*')


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


def test_files_that_are_named_without_a_folder_exist() -> None:
    there = {path.name for path in texts()}
    gone = {
        f"{text.relative_to(ROOT)}: {named}"
        for text in texts()
        for remark in ([text.read_text()] if text.suffix == ".md" else COMMENT.findall(text.read_text()))
        for named in NAME.findall(remark)
        if named not in there
    }
    assert not gone
