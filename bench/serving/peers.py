"""Servers as they are started for the race: each in its own environment, tuned as its recipe says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

CONTEXT = 1024  # of a sequence: 512 tokens in, 256 out, and room


@dataclass(frozen=True)
class Peer:
    """`extra`: fields of every request, as JSON. `note`: what differs from the others."""

    name: str
    version: str
    command: tuple[str, ...]
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    extra: str | None = None
    note: str = ""


def llmc(engine: Path, port: int, threads: int, sequences: int) -> Peer:
    """`llmc serve` of this environment, as it comes: with its prefix cache, which prompts that differ never hit."""
    program = Path(sys.executable).with_name("llmc")
    command = [program, "serve", engine, "--host", "127.0.0.1", "--port", port, "--threads", threads]
    command += ["--max-batch", sequences, "--max-seq-len", CONTEXT]
    return Peer("llmc", _said([program, "--version"]), _words(command), port)


def llama_server(programs: Path, model: Path, port: int, threads: int, sequences: int) -> Peer:
    """llama.cpp's server: a slot for each sequence, flash attention, the repacking it does by default."""
    program = programs / "llama-server"
    command = [program, "-m", model, "-t", threads, "-tb", threads, "-fa", "on", "-np", sequences]
    command += ["-c", CONTEXT * sequences, "-b", 2048, "-ub", 512, "--cache-ram", 0, "--no-webui"]
    command += ["--host", "127.0.0.1", "--port", port]
    sdists = [path.name.removesuffix(".tar.gz") for path in programs.parent.parent.glob("*.tar.gz")]
    version = ", ".join([_said([program, "--version"]), *sdists])
    return Peer("llama.cpp", version, _words(command), port, extra='{"cache_prompt": false}', note="KV in f16")


def openvino(environment: Path, model: Path, port: int, threads: int, sequences: int) -> Peer:
    """OpenVINO GenAI's continuous batching behind openvino_server.py."""
    python = environment / "bin" / "python"
    main = "from bench.serving.openvino_server import main; main()"
    checkout = str(Path(__file__).resolve().parents[2])
    version = _said([python, "-c", "import openvino_genai; print(openvino_genai.__version__)"])
    return Peer(
        "OpenVINO",
        version,
        _words([python, "-c", main, model, port, threads, sequences]),
        port,
        {"PYTHONPATH": checkout},
        note="HTTP by a server of ours that detokenises nothing; KV in 8 bits, its default",
    )


def vllm(environment: Path, model: Path, port: int, threads: int, sequences: int) -> Peer:
    """vLLM's CPU build, compiled, without its prefix cache."""
    python = environment / "bin" / "python"
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "m"]
    command += ["--dtype", "bfloat16", "--max-model-len", CONTEXT, "--max-num-seqs", sequences]
    command += ["--no-enable-prefix-caching", "--host", "127.0.0.1", "--port", port]
    variables = {
        "PATH": f"{environment / 'bin'}:/usr/bin:/bin",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    version = _said([python, "-c", "import importlib.metadata as m; print(m.version('vllm-cpu'))"])
    return Peer("vLLM", version, _words(command), port, variables)


def _words(command: list[object]) -> tuple[str, ...]:
    return tuple(str(word) for word in command)


def _said(command: list[object]) -> str:
    """The line in which a program names its version."""
    done = subprocess.run(_words(command), capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    named = [line for line in lines if "version" in line.lower()]
    return (named or lines[-1:] or ["?"])[0].strip()
