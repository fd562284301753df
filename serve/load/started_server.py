"""A server that the bench starts itself, for as long as it measures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from llmc.serve.load.refusal import BenchRefused

START_SECONDS, STOP_SECONDS = 600.0, 15.0


@dataclass(frozen=True)
class StartedServer:
    """`ready_seconds`: from its start until it was healthy and had a model."""

    url: str
    pid: int
    ready_seconds: float


@contextmanager
def started(command: Sequence[str], port: int, environment: Mapping[str, str] | None = None) -> Iterator[StartedServer]:
    """Run a server's command, enter when it is ready; end it, and its children, afterwards: after a SIGTERM too.

    Raises BenchRefused, with its last words, if it ends before it answers.
    """
    with tempfile.TemporaryFile() as log, _exit_on_term():
        begin = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | dict(environment or {}),
        )
        try:
            url = f"http://127.0.0.1:{port}"
            while not _ready(url):
                if process.poll() is not None or time.perf_counter() - begin > START_SECONDS:
                    log.seek(0)
                    words = " | ".join(log.read().decode(errors="replace").splitlines()[-3:])
                    raise BenchRefused(f"{command[0]} does not serve (exit {process.poll()}): {words}")
                time.sleep(0.02)
            yield StartedServer(url, process.pid, time.perf_counter() - begin)
        finally:
            _end(process)


def free_port() -> int:
    """One that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def peak_memory(pid: int) -> int | None:
    """Most bytes that a process and its children had resident, each at its own time; None where it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        own = int(status.split("VmHWM:")[1].split()[0]) * 1024
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = {int(child) for thread in threads for child in (thread / "children").read_text().split()}
    except (OSError, IndexError):
        return None
    return own + sum(peak_memory(child) or 0 for child in children)


@contextmanager
def _exit_on_term() -> Iterator[None]:
    """Python dies of SIGTERM at once, and what it started would live on."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ready(url: str) -> bool:
    """Some servers are healthy before they have a model, others list it before they are healthy."""
    try:
        with urlopen(f"{url}/health", timeout=5) as health, urlopen(f"{url}/v1/models", timeout=5) as models:
            return bool(health.status == 200 and json.load(models)["data"])
    except (OSError, ValueError, LookupError):
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """The whole session of the server: what it leaves behind would use the cores of what is measured next."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
