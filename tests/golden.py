"""Generated texts beside stored ones: what a change does to generated code is seen in its review."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Golden:
    """golden(text, name): `text` is what the file golden/name beside the test holds, to the letter. With
    --update-golden the file is written instead."""

    folder: Path
    update: bool

    def __call__(self, text: str, name: str) -> None:
        path = self.folder / name
        if self.update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            return
        stored = path.read_text() if path.exists() else ""
        if text != stored:
            before, after = (part.splitlines(keepends=True) for part in (stored, text))
            diff = "".join(difflib.unified_diff(before, after, f"{name}, stored", f"{name}, generated", n=2))
            pytest.fail(
                f"{path} is no longer what is generated; if it should be, --update-golden\n{diff}", pytrace=False
            )
