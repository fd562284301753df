"""The report of a card runs to its end on the emulated one, and shows every primitive."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "bench" / "gpu"

pytest.importorskip("cuda.bindings", reason="needs the extra `cuda`: pip install llmc[cuda]")


@pytest.fixture(scope="module")
def primitives():
    folders = [str(GPU), str(ROOT / "tests" / "cuda")]
    sys.path[:0] = folders
    try:
        import primitives
    finally:
        for folder in folders:
            sys.path.remove(folder)
    return primitives


def test_the_report_is_complete_and_finds_nothing_wrong(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(GPU / "run.py"), "--emulate", "--out", str(tmp_path), "--seed", "1", "--minutes", "60"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.json")
    report = json.loads(path.read_text())
    assert report["complete"] and report["wrong"] == 0 and report["tiny"]
    assert len(report["primitives"]) >= 40 and not any(report["primitives"].values())
    assert len(report["checked"]) == report["cases"] == len(report["timed"])
    assert all(r["seconds"] and r["bytes"] for r in report["timed"])


def test_every_primitive_is_shown(primitives) -> None:  # type: ignore[no-untyped-def]
    sources = "".join(source for check in primitives.CHECKS for source in check.sources)
    names = primitives.named((ROOT / "templates" / "cuda" / "device.cuh").read_text())
    assert len(names) > 40
    assert sorted(name for name in names if f"{name}(" not in sources and f"{name}<" not in sources) == []


def test_a_wrong_value_is_named(primitives) -> None:  # type: ignore[no-untyped-def]
    got, want = np.zeros((2, 3)), np.zeros((2, 3))
    got[1, 2] = 5
    with pytest.raises(AssertionError, match=r"mma: 1 of 6 differ, first at \(1, 2\): 5\.0 for 0\.0"):
        primitives.equal("mma", got, want)
    with pytest.raises(AssertionError, match="nan for 0"):
        primitives.equal("nan", np.array([np.nan]), np.array([0.0]))
