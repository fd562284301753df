"""Scripts of bench/ find the checkout that they are in."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What runs in another program's environment, and imports nothing of this checkout
APART = ("bench/peers/onnx_builder.py",)
SCRIPTS = [path for path in sorted((ROOT / "bench").rglob("*.py")) if 'if __name__ == "__main__"' in path.read_text()]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_puts_its_checkout_on_the_path(script: Path) -> None:
    if str(script.relative_to(ROOT)) in APART:
        assert "from bench" not in script.read_text() and "llmc" not in script.read_text()
        return
    up = len(script.relative_to(ROOT).parts) - 1
    assert f"\nsys.path.insert(0, str(Path(__file__).resolve().parents[{up}]))" in script.read_text()


@pytest.mark.parametrize("script", ["cpu/race.py", "gpu/run.py", "roofline.py"])
def test_a_script_runs_from_any_folder_though_llmc_is_not_installed(script: str, tmp_path: Path) -> None:
    """-S: without the links in site-packages; what lies there itself is found all the same."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(site.getsitepackages())}
    command = [sys.executable, "-S", str(ROOT / "bench" / script), "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "usage:" in done.stdout, done.stderr
