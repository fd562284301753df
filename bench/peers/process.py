"""A peer in a process of its own environment: asked over pipes, and stopped while others are measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from bench.cpu.workload import Workload, prompts
from bench.peers.contender import Logits, PeerError

HERE = Path(__file__).parent


class ProcessContender:
    """Started at once, which takes some peers a minute. Its process group gets SIGSTOP between questions: none of its
    threads spins beside another contender's.
    """

    def __init__(
        self,
        name: str,
        python: Path,
        program: Path,
        model: Path,
        *,
        threads: int,
        vocab_size: int,
        int8: bool,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.int8, self._vocab_size = name, int8, vocab_size
        self.model = model
        log = model.parent / f"{name.replace(' ', '-')}.log"
        with log.open("w") as stderr:
            self._process = subprocess.Popen(
                [str(python), str(program), str(model), str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        self._log = log
        facts = self._answer()
        self.version, self.weight_bytes = str(facts["version"]), int(facts["weight_bytes"])
        self._signal(signal.SIGSTOP)

    @property
    def pid(self) -> int:
        return self._process.pid

    def measure(self, workload: Workload, seed: int) -> float:
        asked = prompts(self._vocab_size, workload, seed)
        return float(self._ask({"ask": "rate", "prompts": asked, "new_tokens": workload.new_tokens})["rate"])

    def logits(self, tokens: Path, out: Path) -> Logits | None:
        given = self._ask({"ask": "logits", "tokens": str(tokens), "out": str(out)})["given"]
        return np.load(out, mmap_mode="r") if given else None

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # a question that nobody read
                pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; the answer that does not come says why
        answer = self._answer()
        self._signal(signal.SIGSTOP)
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            found: dict[str, Any] = json.loads(line)
            return found
        status = self._process.wait()
        words = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        raise PeerError(f"{self.name}: exit {status}: {' | '.join(words[-2:])} (all of it: {self._log})")
