"""What a race says of its samples, and what it asks of llama.cpp's programs (stand-ins that record their arguments)."""

import json
from pathlib import Path

import pytest

from bench.cpu.llamacpp import LlamaCppContender, LlamaCppError, ModelWork, quantize
from bench.cpu.load import Load
from bench.cpu.samples import Sample, Spread, rates, ratios
from bench.cpu.workload import BATCHED, DECODE, PREFILL, prompts

IDLE = Load(0.0, 0.0)


def program(folder: Path, name: str, output: str, status: int = 0) -> None:
    path = folder / name
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" > {folder}/asked\ncat <<"END"\n{output}\nEND\nexit {status}\n')
    path.chmod(0o755)


def contender(folder: Path) -> LlamaCppContender:
    return LlamaCppContender(folder, Path("model.gguf"), 1000, 2)


def test_ratios_pair_samples_of_one_round_and_skip_halves() -> None:
    samples = [
        Sample(0, "row", "ours", 100.0, IDLE),
        Sample(0, "row", "theirs", 50.0, IDLE),
        Sample(1, "row", "theirs", 10.0, IDLE),
        Sample(1, "row", "ours", 30.0, IDLE),
        Sample(2, "row", "ours", 1.0, IDLE),
        Sample(1, "other", "ours", 7.0, IDLE),
    ]
    ours, theirs = rates(samples, "row", "ours"), rates(samples, "row", "theirs")
    assert ratios(ours, theirs) == [2.0, 3.0]
    assert Spread.of(ratios(ours, theirs)).show(digits=1) == "2.5 (2.0..3.0)"


def test_prompts_differ_and_follow_from_the_seed() -> None:
    batch = prompts(1000, BATCHED[0], 5)
    assert [len(p) for p in batch] == [128] * 8
    assert len({tuple(p) for p in batch}) == 8
    assert batch == prompts(1000, BATCHED[0], 5) != prompts(1000, BATCHED[0], 6)


def test_prefill_and_decode_ask_llama_bench_for_the_same_work(tmp_path: Path) -> None:
    program(tmp_path, "llama-bench", json.dumps({"samples_ts": [12.5], "avg_ts": 12.5}))
    assert contender(tmp_path).measure(PREFILL, 0) == 12.5
    assert "-t 2 -fa 1 -p 512 -n 0 -r 1" in (tmp_path / "asked").read_text()
    assert contender(tmp_path).measure(DECODE, 0) == 12.5
    assert "-t 2 -fa 1 -p 0 -n 128 -d 128 -r 1" in (tmp_path / "asked").read_text()


def test_batches_go_through_batched_bench(tmp_path: Path) -> None:
    program(tmp_path, "llama-batched-bench", "main: a line of text\n" + json.dumps({"pl": 16, "speed_tg": 99.0}))
    assert contender(tmp_path).measure(BATCHED[1], 0) == 99.0
    assert "-npp 128 -ntg 128 -npl 16" in (tmp_path / "asked").read_text()


def test_a_failing_program_is_an_error_and_leaves_no_model(tmp_path: Path) -> None:
    program(tmp_path, "llama-quantize", "", status=3)
    with pytest.raises(LlamaCppError, match="exit 3"):
        quantize(tmp_path, tmp_path / "in.gguf", tmp_path / "out.gguf", "BF16")
    assert not list(tmp_path.glob("*.gguf*"))


def test_prefill_operations_count_the_head_once_and_attention_causally() -> None:
    work = ModelWork(weight_bytes=0, linear_params=1000, head_params=300, attention_width=20)
    assert work.prefill_operations(4) == 2 * (4 * 1000 + 300 + 10 * 20)
