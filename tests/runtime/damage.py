"""Engine folders that were changed, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmc.runtime.artifact.artifact import (
    open_artifact,
)
from llmc.runtime.artifact.features import Machine
from llmc.runtime.artifact.hashing import digest
from llmc.runtime.artifact.strict_json import render_json


def refuse(folder: Path, kind: type[Exception], match: str, machine: Machine | None = None) -> None:
    with pytest.raises(kind, match=match) as caught:
        open_artifact(folder, machine).close()
    assert "\n" not in str(caught.value)


def edit_manifest(folder: Path, change: Callable[[Any], object]) -> None:
    """Change the manifest's plain JSON and give it a right checksum, as a wrong producer would."""
    plain = json.loads((folder / "manifest.json").read_text())
    plain.pop("checksum")
    change(plain)
    (folder / "manifest.json").write_bytes(render_json({**plain, "checksum": digest(render_json(plain))}))
