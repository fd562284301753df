"""The race's peers in processes of their own: a stand-in that answers as they do, alone and in the smallest race."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bench.cpu import race
from bench.cpu.quality import Quality, judge, kept, write_tokens
from bench.cpu.workload import DECODE, PREFILL, Workload
from bench.peers.contender import PeerError
from bench.peers.environments import environment, run
from bench.peers.onnx_builder import older_rope
from bench.peers.process import ProcessContender
from tests.sources.gguf_files import WORDS, llama_metadata, llama_tensors, tiny_llama, write_gguf

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = """
import sys
import numpy as np
sys.path.insert(0, ROOT)
from bench.peers.answering import serve

class StandIn:
    version, weight_bytes = "stand-in 1", 1000
    def __init__(self, model, threads):
        print("noise of a library")
        self.asked = []
    def prefill_seconds(self, prompts):
        return 0.5
    def decode_seconds(self, prompts, new_tokens):
        if new_tokens == 13:
            raise ValueError("13 is too many")
        self.asked.append(new_tokens)
        return {4: 1e9, 128: 127 / 8}[new_tokens]
    def logits(self, ids):
        return np.array([[i, 2.0] + [0.0] * 30 for i in ids], np.float32)

serve(StandIn)
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """An environment whose Python runs the stand-in, whatever program it is given."""
    program = tmp_path / "stand_in.py"
    program.write_text(STAND_IN.replace("ROOT", repr(str(ROOT))))
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} {program} "$@"\n')
    python.chmod(0o755)
    return tmp_path / "env"


def started(environment: Path, model: Path) -> ProcessContender:
    python = environment / "bin" / "python"
    return ProcessContender("stand in", python, Path("x.py"), model, threads=2, vocab_size=32, int8=True)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_peer_answers_and_is_stopped_between_questions(stand_in: Path, tmp_path: Path) -> None:
    peer = started(stand_in, tmp_path / "model")
    try:
        assert (peer.version, peer.weight_bytes) == ("stand-in 1", 1000)
        assert peer.measure(PREFILL, 0) == 1024.0 and peer.measure(DECODE, 0) == 8.0
        deadline = time.monotonic() + 10
        while state(peer.pid) != "T":
            assert time.monotonic() < deadline
        np.save(tmp_path / "tokens.npy", np.array([[1, 2], [3, 4]], np.int32))
        found = peer.logits(tmp_path / "tokens.npy", tmp_path / "logits.npy")
        assert found is not None and found[:, :, 0].tolist() == [[1, 2], [3, 4]]
    finally:
        peer.close()
    assert not Path(f"/proc/{peer.pid}").exists()


def test_a_peer_that_dies_says_its_last_words(stand_in: Path, tmp_path: Path) -> None:
    peer = started(stand_in, tmp_path / "model")
    with pytest.raises(PeerError, match=r"stand in: exit 1: .*13 is too many"):
        peer.measure(Workload(DECODE.phase, 1, 4, 13), 0)
    with pytest.raises(PeerError, match="exit 1"):
        peer.measure(DECODE, 0)
    peer.close()


def test_an_environment_that_is_given_is_taken_and_a_failing_command_tells_why(tmp_path: Path) -> None:
    assert environment("vllm", tmp_path, Path("nowhere")) == tmp_path
    with pytest.raises(PeerError, match=r"x: .*exit 7: no \| such luck"):
        run("x", ["sh", "-c", "echo no; echo such luck >&2; exit 7"])


def test_kl_is_of_the_contender_from_the_reference_and_padding_is_left_out() -> None:
    reference = np.log(np.array([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]], np.float32))
    found = np.log(np.array([[[0.25, 0.5, 0.25, 9], [0.1, 0.8, 0.1, 9]]], np.float32))
    quality = judge(found, reference)
    first = 0.5 * np.log(2) - 0.25 * np.log(2)
    assert quality.mean_kl == pytest.approx(first / 2) and quality.p99_kl == pytest.approx(0.99 * first)
    assert (quality.top1, quality.positions) == (0.5, 2)
    assert judge(reference, reference).mean_kl == 0


def test_a_quality_is_found_again_only_under_another_key(tmp_path: Path) -> None:
    first, second = Quality(1, 2, 0.5, 3), Quality(4, 5, 0.5, 6)
    assert kept(tmp_path / "q", "a", lambda: first) == first
    assert kept(tmp_path / "q", "a", lambda: second) == first
    assert kept(tmp_path / "q", "b", lambda: second) == second
    assert kept(tmp_path / "q", "c", lambda: None) is kept(tmp_path / "q", "c", lambda: second) is None


def test_rope_of_each_type_of_layer_is_told_as_it_used_to_be() -> None:
    class Config:
        rope_parameters = {"full_attention": {"rope_theta": 5}, "sliding_attention": {"rope_theta": 7}}  # noqa: RUF012

    config = older_rope(Config())
    assert (config.rope_theta, config.rope_local_base_freq) == (5, 7)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 5}


def test_the_smallest_race(stand_in: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command itself: a tiny model dithered, built, judged and raced against a stand-in for a peer."""
    model = tiny_llama(max_position_embeddings=1024)
    write_gguf(tmp_path / "tiny.gguf", "llama", llama_metadata(model), llama_tensors(model))
    (tmp_path / "text").write_text("abcabab" * 20)
    work = tmp_path / "work"
    command = ["--work", str(work), "--model", str(tmp_path / "tiny.gguf"), "--text", str(tmp_path / "text")]
    command += ["--dtypes", "f32", "--peers", "vllm", "--given", f"vllm={stand_in}", "--rounds", "1"]
    race.main([*command, "--sequences", "2", "--length", "16", "--png", str(tmp_path / "race.png")])
    said = capsys.readouterr().out
    assert "every sample:" in said and "decode b16" in said and (tmp_path / "race.png").stat().st_size > 10000
    found = json.loads((work / "tiny.race.json").read_text())
    ours, peer = found["contenders"]
    assert (ours["name"], peer["name"], peer["version"]) == ("llmc f32", "vLLM bf16", "stand-in 1")
    assert ours["quality"]["mean_kl"] < 1e-6 < peer["quality"]["mean_kl"] and ours["quality"]["positions"] == 32
    rates = {(s["row"], s["contender"]): s["rate"] for s in found["samples"]}
    assert len(rates) == 8 and rates["decode b8", "vLLM bf16"] == 64.0 and all(rate > 0 for rate in rates.values())
    assert len(write_tokens(work / "tiny-hf", tmp_path / "text", 9, 16, tmp_path / "t.npy").read_bytes()) > 0
    assert np.load(tmp_path / "t.npy").shape[1] == 16 and np.load(tmp_path / "t.npy").max() < len(WORDS)
