"""llama.cpp's logits: llamacpp_logits.cpp, compiled over the library that build_llamacpp.sh left, and run."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import numpy as np

from bench.peers.contender import Logits, PeerError

LIBRARIES = ("src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a", "ggml/src/libggml-base.a")


def compile_program(programs: Path, out: Path) -> Path:
    """`programs`: FOLDER/build/bin; its source lies in FOLDER/source."""
    build, source = programs.parent, programs.parents[1] / "source" / "llama.cpp"
    command = ["g++", "-std=c++17", "-O1", *(f"-I{source / part / 'include'}" for part in ("", "ggml"))]
    command += [str(Path(__file__).with_name("llamacpp_logits.cpp")), *(str(build / name) for name in LIBRARIES)]
    done = subprocess.run([*command, "-fopenmp", "-ldl", "-o", str(out)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerError(f"llama.cpp: no program for its logits: {' | '.join(done.stderr.splitlines()[-2:])}")
    return out


def llamacpp_logits(programs: Path, model: Path, threads: int, tokens: Path, out: Path) -> Logits:
    """float32 [sequences, T, vocab], in the file `out`."""
    ids = np.load(tokens).astype(np.int32)
    with tempfile.TemporaryDirectory() as folder, out.open("wb") as answers:
        program = compile_program(programs, Path(folder) / "logits")
        command = [str(program), str(model), str(threads), *map(str, ids.shape)]
        done = subprocess.run(command, input=ids.tobytes(), stdout=answers, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise PeerError(f"llama.cpp: {model.name}: logits: {done.stderr.decode(errors='replace').strip()[-200:]}")
    return np.memmap(out, np.float32, "r").reshape(*ids.shape, -1)
