"""`llmc serve` as a process, for tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-c", "from llmc.compiler.commands.cli import main; main()", "serve"]
HANG = 30.0  # seconds: what takes longer than this is stuck


@dataclass
class Served:
    """A server that is ready. Its log is read as far as that."""

    process: subprocess.Popen[str]
    url: str

    @property
    def children(self) -> list[int]:
        own = self.process.pid
        return [int(child) for child in Path(f"/proc/{own}/task/{own}/children").read_text().split()]

    @property
    def child(self) -> int:
        """The process of its engines."""
        (child,) = self.children
        return child

    def events(self) -> list[dict[str, Any]]:
        """The rest of the log, when the server has ended."""
        assert self.process.stderr is not None
        lines = [line for line in self.process.stderr.read().splitlines() if line.startswith("{")]
        return [json.loads(line) for line in lines]


@contextmanager
def served(engine: Path, *arguments: str, name: str = "toy", env: Mapping[str, str] | None = None) -> Iterator[Served]:
    words = [*COMMAND, f"{name}={engine}", "--port", "0", "--log-json", "--threads", "1", *arguments]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if (ready := re.search(r'"event":"ready","url":"(.*?)"', line)) is not None:
                yield Served(process, ready.group(1))
                break
        else:
            raise AssertionError(f"it ended with {process.wait()}")
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
