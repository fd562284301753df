"""Servers that a bench starts end with it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llmc.serve.load.refusal import BenchRefused
from llmc.serve.load.started_server import free_port, peak_memory, started

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'{"data": [1]}')
    def log_message(self, *arguments): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
BENCH = f"""
import signal, sys, time
from llmc.serve.load.started_server import started
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job would ignore
with started([sys.executable, "-c", {SERVER!r}, sys.argv[1]], int(sys.argv[1])) as server:
    print(server.pid, flush=True)
    time.sleep(60)
"""


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_server_ends_with_its_block() -> None:
    port = free_port()
    with started([sys.executable, "-c", SERVER, str(port)], port) as server:
        assert alive(server.pid) and 0 < server.ready_seconds < 60
        assert (peak_memory(server.pid) or 0) > 1 << 20
    assert not alive(server.pid)
    assert peak_memory(server.pid) is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_with_a_bench_that_is_told_to(number: signal.Signals) -> None:
    command = [sys.executable, "-c", BENCH, str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as bench:
        assert bench.stdout is not None
        pid = int(bench.stdout.readline())
        os.kill(bench.pid, number)
        assert bench.wait(30) != 0
    deadline = time.monotonic() + 30
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(pid)


def test_a_server_that_ends_at_once_is_refused_with_its_last_words() -> None:
    with (
        pytest.raises(BenchRefused, match=r"does not serve \(exit 3\): no room"),
        started(["sh", "-c", "echo no room; exit 3"], free_port()),
    ):
        pass
