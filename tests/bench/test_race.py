"""What a race asks of llama.cpp's programs (stand-ins that record their arguments), and what it says of its samples."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cpu.llamacpp import LlamaCppContender, LlamaCppError, ModelWork, quantize
from bench.cpu.load import Load
from bench.cpu.picture import picture
from bench.cpu.quality import Quality
from bench.cpu.race import Machine, run, turn
from bench.cpu.results import Entry, Result, leads, report, told
from bench.cpu.samples import Sample, Spread, rates, ratios
from bench.cpu.workload import BATCHED, DECODE, PREFILL, Workload, prompts
from bench.peers.contender import Contender, PeerError

IDLE = Load(0.0, 0.0)


def program(folder: Path, name: str, output: str, status: int = 0) -> None:
    path = folder / name
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" > {folder}/asked\ncat <<"END"\n{output}\nEND\nexit {status}\n')
    path.chmod(0o755)


def contender(folder: Path) -> LlamaCppContender:
    return LlamaCppContender(folder, Path("model.gguf"), 1000, 2)


def test_ratios_pair_samples_of_one_round_and_skip_halves() -> None:
    samples = [
        Sample(0, "row", "ours", 100.0, 1.0, IDLE),
        Sample(0, "row", "theirs", 50.0, 1.0, IDLE),
        Sample(1, "row", "theirs", 10.0, 1.0, IDLE),
        Sample(1, "row", "ours", 30.0, 1.0, IDLE),
        Sample(2, "row", "ours", 1.0, 1.0, IDLE),
        Sample(1, "other", "ours", 7.0, 1.0, IDLE),
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
    work = ModelWork(weight_bytes=0, linear_params=1000, head_params=300, attention_width=20, vocab_size=9)
    assert work.prefill_operations(4) == 2 * (4 * 1000 + 300 + 10 * 20)


WORK = ModelWork(weight_bytes=0, linear_params=1000, head_params=300, attention_width=20, vocab_size=9)
QUALITY = Quality(0.01, 0.1, 0.95, 100)
ENTRIES = [
    Entry("llmc int4", "1", 100, True, QUALITY),
    Entry("llmc bf16", "1", 400, False, QUALITY),
    Entry("small", "2", 90, True, None),
    Entry("middle", "2", 98, True, replace(QUALITY, mean_kl=0.02)),
    Entry("large", "2", 300, False, None),
]
RATES = {"llmc int4": 60.0, "llmc bf16": 9.0, "small": 50.0, "middle": 20.0, "large": 10.0}


def race_samples() -> list[Sample]:
    rounds = [(number, name, rate) for number in range(2) for name, rate in RATES.items()]
    return [Sample(n, DECODE.name, name, rate * (1 + n), 10000.0, Load(0.5, 0.25)) for n, name, rate in rounds]


def test_we_lead_over_the_best_peer_that_reads_no_less() -> None:
    (lead,) = leads(DECODE.name, ENTRIES, race_samples())  # nobody reads as much as our bf16
    assert (lead.ours, lead.peer, lead.ratio.show()) == ("llmc int4", "middle", "3 (3..3)")


def test_a_rate_amounts_to_bytes_of_weights_and_a_fraction_of_the_read_at_that_moment() -> None:
    result = Result.of(DECODE, ENTRIES[0], race_samples(), WORK)
    assert (result.used.lowest, result.used.highest, result.unit) == (6000.0, 12000.0, "GB/s")
    assert (result.fraction.lowest, result.others, result.stolen) == (0.6, 0.5, 0.25)
    sample = Sample(0, PREFILL.name, "small", 10.0, 1e6, IDLE)
    prefill = Result.of(PREFILL, ENTRIES[2], [sample], WORK)
    assert prefill.used.median == 10 * WORK.prefill_operations(512) / 512 and prefill.unit == "GFLOP/s"


def test_the_report_names_everyone_and_a_picture_is_drawn(tmp_path: Path) -> None:
    results = [Result.of(DECODE, entry, race_samples(), WORK) for entry in ENTRIES]
    lines = [*told(ENTRIES), *report(results, list(leads(DECODE.name, ENTRIES, race_samples())))]
    assert "0.01000    0.1000   95.0%" in lines[1] and "not given" in lines[3]
    assert lines[-1].split() == ["decode", "b1", "llmc", "int4", "over", "middle", "3.00", "(3.00..3.00)"]
    picture(tmp_path / "race.png", "tiny", ENTRIES, results)
    assert (tmp_path / "race.png").read_bytes().startswith(b"\x89PNG")


class Failing:
    """Runs once, then fails."""

    name, version, weight_bytes, int8, pid, model = "x", "1", 10, True, None, Path()
    left = 1

    def measure(self, workload: Workload, seed: int) -> float:
        self.left -= 1
        if self.left < 0:
            raise PeerError("broke down")
        return 3.0

    def logits(self, tokens: Path, out: Path) -> None: ...

    def close(self) -> None: ...


class Unlimited(Machine):
    def __init__(self) -> None:
        """No probes."""

    def limit(self, contender: Contender, workload: Workload) -> float:
        return 1.0


def test_who_fails_leaves_the_race_and_its_samples_count() -> None:
    out: dict[str, str] = {}
    samples, averages = run(2, [PREFILL, DECODE], [Failing(), Failing()], Unlimited(), out)
    assert [(s.round, s.row, s.rate) for s in samples] == [(0, PREFILL.name, 3.0)] * 2
    assert out == {"x": "broke down"} and len(averages) == 2


def test_everyone_takes_every_place() -> None:
    contenders = [replace(contender(Path()), name=str(number)) for number in range(3)]
    orders = [[c.name for c in turn(contenders, number)] for number in range(6)]
    assert orders[:2] == [["0", "1", "2"], ["2", "1", "0"]]
    assert all({order[place] for order in orders} == {"0", "1", "2"} for place in range(3))
