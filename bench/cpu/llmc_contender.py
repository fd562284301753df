"""Our side of the race: an engine in this process, driven through llmc.runtime."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from bench.cpu.workload import Phase, Workload, prompts
from bench.peers.contender import Logits
from llmc.runtime import Engine, RequestHandle


def build_engine(model: Path, out: Path, dtype: str | None) -> None:
    """`llmc build`, in a process of its own so that torch stays out of this one. It replaces what is at `out`.

    `dtype` None: every linear in what the model has it stored in.
    """
    command = [str(Path(sys.executable).with_name("llmc")), "build", str(model), "-o", str(out)]
    command += ["--certify", "0"]  # the race judges everyone itself
    subprocess.run([*command, *(("--dtype", dtype) if dtype else ())], check=True, stdout=2)


class LlmcContender:
    """Greedy requests; a rate counts whole engine steps: scheduling, the step, sampling, detokenising."""

    pid = None  # it is this process

    def __init__(self, folder: Path, threads: int, name: str = "llmc", int8: bool = False) -> None:
        self.name, self.int8, self.model = name, int8, folder
        self.version = f"llmc {version('llmc')}"
        self.engine = Engine.load(folder, threads=threads, max_seq_len=1024)
        self.weight_bytes = self.engine.device.memory.weights_bytes  # an untied embedding, if there is one, included

    def close(self) -> None:
        self.engine.close()

    def logits(self, tokens: Path, out: Path) -> Logits:
        ids = np.load(tokens)
        shape = (*ids.shape, self.engine.manifest.model.num_valid_tokens)
        found = np.lib.format.open_memmap(out, mode="w+", dtype=np.float32, shape=shape)
        for number, sequence in enumerate(ids.tolist()):
            found[number] = self.engine.logits(sequence)[:, : shape[2]]
        return found

    def measure(self, workload: Workload, seed: int) -> float:
        return self._prefill(workload, seed) if workload.phase is Phase.PREFILL else self._decode(workload, seed)

    def _submit(self, workload: Workload, seed: int, max_tokens: int) -> list[RequestHandle]:
        tokens = prompts(self.engine.manifest.model.num_valid_tokens, workload, seed)
        # of class batch: prompts are computed as fast as can be, whoever decodes
        greedy = self.engine.sampling(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        return [self.engine.submit(p, greedy, latency="batch") for p in tokens]

    def _prefill(self, workload: Workload, seed: int) -> float:
        for handle in self._submit(workload, seed, 1):
            handle.result()
        begin = time.perf_counter()
        for handle in self._submit(workload, seed + 1, 1):
            handle.result()
        return workload.batch * workload.prompt_len / (time.perf_counter() - begin)

    def _decode(self, workload: Workload, seed: int) -> float:
        """Only steps in which every sequence decodes are timed: the prompts of a batch need several steps."""
        steps = workload.new_tokens - 1
        handles = self._submit(workload, seed, 2 * workload.new_tokens)
        for handle in handles:
            next(iter(handle))  # its first token
        begin = time.perf_counter()
        for _ in range(steps):
            self.engine.step()
        seconds = time.perf_counter() - begin
        assert all(handle.completion is None for handle in handles), "a sequence ended while it was timed"
        for handle in handles:
            handle.cancel()
        return workload.batch * steps / seconds
