"""llama.cpp's side of the race: its own benchmark programs, and the GGUF files they run."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import gguf

from bench.cpu.llamacpp_logits import llamacpp_logits
from bench.cpu.workload import Phase, Workload
from bench.peers.contender import Logits, PeerError

CONTEXT = 8192  # of llama-batched-bench: 16 sequences of 256 tokens and room
TOKENS_PER_STEP = 512  # as in our engines


class LlamaCppError(PeerError):
    """One of its programs failed; the message holds its last words."""


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LlamaCppError(f"{' '.join(command)}: exit {done.returncode}: {' | '.join(done.stderr.splitlines()[-3:])}")
    return done.stdout


def _objects(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def quantize(programs: Path, source: Path, out: Path, type_name: str) -> Path:
    """`source` as llama-quantize makes `type_name` of it (BF16, Q8_0, Q4_K_M: mixed as it mixes them).

    Made once, renamed into place when whole.
    """
    if out.is_file():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        _run([str(programs / "llama-quantize"), "--allow-requantize", str(source), str(part), type_name])
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return out


@dataclass(frozen=True)
class ModelWork:
    """Facts of a GGUF file that turn rates into bytes and operations per second."""

    weight_bytes: int  # of the matrices that a decode step reads whole
    linear_params: int  # of matrices that every token goes through
    head_params: int  # of the output matrix, which sampled rows go through
    attention_width: int  # query heads x (key + value width), over all layers
    vocab_size: int

    @classmethod
    def of(cls, path: Path) -> ModelWork:
        reader = gguf.GGUFReader(path)
        matrices = {t.name: t for t in reader.tensors if len(t.shape) == 2}
        head = matrices.get("output.weight", matrices["token_embd.weight"])
        inner = [t for name, t in matrices.items() if name not in ("output.weight", "token_embd.weight")]

        def fact(key: str, default: int | None = None) -> int:
            field = reader.get_field(key)
            if field is None and default is None:
                raise LlamaCppError(f"{path}: no {key}")
            return int(field.contents()) if field is not None else int(default or 0)

        field = reader.get_field("general.architecture")
        assert field is not None
        arch = field.contents()
        heads = fact(f"{arch}.attention.head_count")
        width = fact(f"{arch}.embedding_length") // heads
        key, value = (fact(f"{arch}.attention.{which}_length", width) for which in ("key", "value"))
        return cls(
            weight_bytes=sum(int(t.n_bytes) for t in (*inner, head)),
            linear_params=sum(int(t.n_elements) for t in inner),
            head_params=int(head.n_elements),
            attention_width=fact(f"{arch}.block_count") * heads * (key + value),
            vocab_size=int(head.shape[1]),
        )

    def prefill_operations(self, prompt_len: int) -> int:
        """Operations to process a prompt and the logits of its last token; causal attention, without windows."""
        pairs = prompt_len * (prompt_len + 1) // 2
        return 2 * (prompt_len * self.linear_params + self.head_params + pairs * self.attention_width)


@dataclass(frozen=True)
class LlamaCppContender:
    """llama-bench and llama-batched-bench with flash attention, their default repacking, and `threads` threads.

    Each measure is a process of its own that loads the model, warms up as llama-bench does by default, and runs once.
    Neither samples: llama-bench decodes random tokens. Its KV cache holds f16.
    """

    programs: Path
    model: Path
    weight_bytes: int
    threads: int
    name: str = "llama.cpp"
    int8: bool = False  # whether its matrices are quantised: then it quantises inputs to 8 bits
    version: str = ""
    pid: None = None

    def logits(self, tokens: Path, out: Path) -> Logits:
        return llamacpp_logits(self.programs, self.model, self.threads, tokens, out)

    def close(self) -> None:
        """Its programs have ended."""

    def measure(self, workload: Workload, seed: int) -> float:
        if workload.batch > 1:
            return self._batched(workload)
        if workload.phase is Phase.PREFILL:
            shape = ["-p", str(workload.prompt_len), "-n", "0"]
        else:
            shape = ["-p", "0", "-n", str(workload.new_tokens), "-d", str(workload.prompt_len)]
        command = [str(self.programs / "llama-bench"), "-m", str(self.model), "-t", str(self.threads), "-fa", "1"]
        command += [*shape, "-r", "1", "-o", "jsonl"]
        (result,) = _objects(_run(command))
        samples = result["samples_ts"]
        assert isinstance(samples, list)
        return float(samples[0])

    def _batched(self, workload: Workload) -> float:
        command = [str(self.programs / "llama-batched-bench"), "-m", str(self.model), "-fa", "on", "-c", str(CONTEXT)]
        command += ["-t", str(self.threads), "-tb", str(self.threads), "-b", "2048", "-ub", str(TOKENS_PER_STEP)]
        command += ["-npp", str(workload.prompt_len), "-ntg", str(workload.new_tokens), "-npl", str(workload.batch)]
        (result,) = _objects(_run([*command, "--output-format", "jsonl"]))
        return float(str(result["speed_tg"]))
