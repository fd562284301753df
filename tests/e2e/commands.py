"""`llmc` on a command line, as users meet it: its own process, its exit code, its two streams."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO


@dataclass(frozen=True)
class Ended:
    """A command that has ended. `code`: negative for the signal that killed it."""

    code: int
    stdout: str
    stderr: str


class Running:
    """A command under way."""

    def __init__(self, server: IO[str], pid: int, stdout: Path, stderr: Path) -> None:
        self.pid = pid
        self._server = server
        self._streams = (stdout, stderr)

    def wait(self) -> Ended:
        code = int(self._server.readline())
        return Ended(code, *(path.read_text() for path in self._streams))


class Commands:
    """Starts commands, one at a time, through fork_server.py: the imports, many seconds of them, happen once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None and self._process.stdin is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        assert self._out.readline() == "ready\n"

    def start(self, *args: str | Path, folder: Path | None = None, **env: str) -> Running:
        stdout, stderr = self.folder / "stdout", self.folder / "stderr"
        request = {
            "args": [str(arg) for arg in args],
            "env": env,
            "folder": str(folder or self.folder),
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        self._in.write(json.dumps(request) + "\n")
        self._in.flush()
        return Running(self._out, int(self._out.readline()), stdout, stderr)

    def run(self, *args: str | Path, folder: Path | None = None, **env: str) -> Ended:
        return self.start(*args, folder=folder, **env).wait()

    def __enter__(self) -> Commands:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in.close()
        self._process.wait()
