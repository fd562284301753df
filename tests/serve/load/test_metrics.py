"""The figures of runs whose answers are known by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from llmc.runtime.artifact.kv_layout import KvGroup, KvLayout, KvSlot
from llmc.serve.load.metrics import Percentiles, Terms, errors, medians, summarise
from llmc.serve.load.padding import padded_tokens
from llmc.serve.load.records import Gauges, Run
from llmc.serve.load.refusal import BenchRefused
from llmc.serve.load.slo import Slo, parse_slo
from llmc.serve.load.utilisation import Limits, Machine, ModelWork, machine_of
from tests.runtime.engine_folders import target
from tests.serve.load.records import record

TERMS = Terms(batch=2)


def near(value: float | None, expected: float) -> bool:
    return value is not None and math.isclose(value, expected, rel_tol=1e-9)


def test_latencies_by_hand() -> None:
    """Arrived at 1 s, tokens at 1.5, 1.6, 1.8 s, ended at 2 s: TTFT 500, gaps 100 and 200, E2E 1000, TPOT 250 ms."""
    found = summarise(Run((record([1.5, 1.6, 1.8], begin=1.0, end=2.0),), 2.0), TERMS).all
    assert found.ttft and found.itl and found.e2e and found.tpot
    assert near(found.ttft.mean, 500) and near(found.e2e.p50, 1000) and near(found.tpot.mean, 250)
    assert near(found.itl.mean, 150) and near(found.itl.p50, 150)


def test_percentiles_are_interpolated_linearly() -> None:
    found = Percentiles.of([0.1, 0.2, 0.3, 0.4, 0.5])
    assert found is not None
    assert near(found.mean, 300) and near(found.p50, 300) and near(found.p90, 460) and near(found.p95, 480)
    assert near(found.p99, 496)
    assert Percentiles.of([]) is None


def test_tpot_counts_tokens_not_outputs_where_a_server_joins_them() -> None:
    """Two outputs of 5 tokens each: 9 tokens after the first in 0.9 s."""
    summary = summarise(Run((record([0.1, 1.0], tokens=10),), 1.0), TERMS)
    assert summary.all.tpot is not None and near(summary.all.tpot.mean, 100)
    assert near(summary.tokens_per_output, 5) and near(summary.output_tps, 10)


def test_an_answer_of_one_token_has_no_tpot() -> None:
    assert summarise(Run((record([0.1]),), 1.0), TERMS).all.tpot is None


def test_rates_are_of_what_was_answered() -> None:
    run = Run((record([1, 2], prompt=30), record([1, 4], prompt=10), record([], error="HTTP 503: full")), 4.0)
    found = summarise(run, TERMS)
    assert (found.requests, found.failed, found.prompt_tokens, found.output_tokens) == (3, 1, 40, 4)
    assert near(found.rps, 0.5) and near(found.output_tps, 1) and near(found.total_tps, 11)
    assert errors([run, run]) == {"HTTP 503: full": 2}


def test_a_run_in_which_everything_failed_has_figures_all_the_same() -> None:
    found = summarise(Run((record([], error="gone"),), 0.0, 0.01), Terms(2, Slo(ttft=1.0), 1.0))
    assert found.failed == 1 and found.output_tps == 0 and found.price is None and found.all.ttft is None
    assert found.all.good_share == 0 and found.client.cpu is None


def test_padding_fills_each_batch_to_its_longest_prompt_and_answer() -> None:
    assert padded_tokens([(10, 5), (20, 1), (7, 3)], 2) == 2 * (20 + 5) + 1 * (7 + 3)
    assert padded_tokens([], 4) == 0
    useful = summarise(Run((record([1] * 5, prompt=10), record([1], prompt=20)), 2.0), TERMS)
    assert near(useful.useful_share, (10 + 5 + 20 + 1) / 50) and near(useful.padded_tps, 25)


def test_goodput_counts_answers_that_keep_every_bound() -> None:
    slo = parse_slo("ttft:500ms,tpot:50ms,e2e:2s")
    assert slo == Slo(0.5, 0.05, 2.0)
    kept, late, slow = record([0.5, 0.54]), record([0.51, 0.52]), record([0.1, 0.2])
    assert [slo.met(each) for each in (kept, late, slow)] == [True, False, False]
    found = summarise(Run((kept, late, slow, record([], error="x")), 2.0), Terms(2, slo)).all
    assert found.goodput == 0.5 and found.good_share == 0.25


@pytest.mark.parametrize("text", ["", "ttft", "ttft:5", "ttft:5ms,ttft:6ms", "itl:5ms", "ttft:5m", "ttft:1.2.3s"])
def test_what_is_no_slo_is_refused(text: str) -> None:
    with pytest.raises(BenchRefused, match="is no bound"):
        parse_slo(text)


def test_classes_are_judged_apart() -> None:
    run = Run((record([1], latency="batch"), record([3], latency="interactive"), record([5], latency="batch")), 5.0)
    found = summarise(run, TERMS).by_class
    assert {name: each.ttft and each.ttft.mean for name, each in found.items()} == {"batch": 3000, "interactive": 3000}
    assert [each.requests for each in found.values()] == [2, 1]


def test_price_of_a_million_tokens() -> None:
    """3.60 an hour is 0.001 a second: of 10 output tokens, 0.0001 each."""
    found = summarise(Run((record([1] * 10, prompt=90),), 1.0), Terms(1, price=3.6)).price
    assert found is not None and near(found.output, 100) and near(found.total, 10)


def test_a_late_client_counts_as_latency_and_is_told() -> None:
    """Arrived at 1, sent at 1.2, first token at 1.3: the user waited 0.3 s."""
    found = summarise(Run((record([1.3], begin=1.0, sent=1.2),), 2.0, client_cpu=0.5), TERMS)
    assert found.all.ttft is not None and near(found.all.ttft.mean, 300)
    assert near(found.client.lag, 200) and found.client.cpu == 0.25


def test_short_answers_are_counted() -> None:
    assert summarise(Run((record([1, 2], asked=3), record([1, 2])), 2.0), TERMS).short == 1


KV = KvLayout(
    32, tuple(KvGroup(window, 320, size, (KvSlot("a", 1, 2, 2, "f32"),)) for window, size in ((None, 10), (4, 100)))
)
WORK = ModelWork(prompt_flops=100.0, output_flops=150.0, arithmetic="bf16", weight_bytes=1000, kv=KV)


def test_mfu_and_mbu_by_hand() -> None:
    """A prompt of 3 (one of whose tokens is sampled) and 2 tokens of answer, one of which reads keys and values."""
    run = Run((record([1, 2], prompt=3),), 2.0, gauges=Gauges(steps=2))
    found = summarise(run, Terms(1, machine=Machine(bandwidth=1e4, peak=1e3, work=WORK))).utilisation
    assert found is not None
    assert near(found.mfu, (2 * 100 + 2 * 150) / 2.0 / 1e3)
    assert WORK.kv_read(3) == 4 * 10 + 4 * 100 and WORK.kv_read(9) == 10 * 10 + 4 * 100
    assert near(found.mbu, (2 * 1000 + WORK.kv_read(3)) / 2.0 / 1e4)


def test_cached_prompt_tokens_are_not_computed_and_steps_may_be_unknown() -> None:
    one = replace(record([1], prompt=11), cached_tokens=10)
    summary = summarise(Run((one,), 1.0), Terms(1, machine=Machine(1e4, 1e3, WORK)))
    assert summary.cached_tokens == 10
    assert summary.utilisation is not None and summary.utilisation.mbu is None
    assert near(summary.utilisation.mfu, 150 / 1e3)


def test_medians_go_field_by_field() -> None:
    runs = [Run((record([t]),), t) for t in (1.0, 9.0, 2.0)]
    found = medians([summarise(run, TERMS) for run in runs])
    assert found.seconds == 2 and found.all.ttft is not None and found.all.ttft.p99 == 2000
    assert found.requests == 1 and found.price is None
    mixed = medians([summarise(Run((record([1], latency=name),), 1.0), TERMS) for name in ("a", "a")])
    assert list(mixed.by_class) == ["a"]


def test_the_work_of_a_model_is_read_from_its_engines_report(tmp_path: Path) -> None:
    """A prompt of 5: four tokens of 100 operations, the last of 150 as one that is sampled."""

    def step(flops: int) -> dict[str, object]:
        kernels = [("packed_linear", flops - 10, "bf16"), ("head_linear", 10, "f32"), ("paged_attention", 999, "f32")]
        return {"kernels": [{"op": op, "matrix_flops": f, "matrix_unit": unit} for op, f, unit in kernels]}

    point = {"batch": 1, "length": 5, "tpot": step(150), "ttft": step(550)}
    peaks = {"bf16": 5e3, "f32": None}
    prediction = {"bandwidth": 7e3, "peaks": peaks, "weight_bytes": 1000, "points": [{"batch": 8}, point]}
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"targets": {"cpu": {"roofline": prediction}}}))
    cpu = target(kv=KV)
    assert machine_of(path, cpu, None) == Machine(7e3, 5e3, WORK)
    assert machine_of(path, cpu, Limits(1e3, {"bf16": 2e3})) == Machine(1e3, 2e3, WORK)
    path.write_text(json.dumps({"targets": {"cpu": {"roofline": prediction | {"bandwidth": None, "peaks": {}}}}}))
    assert machine_of(path, cpu, None) is None
    assert machine_of(tmp_path / "none.json", cpu, Limits(1e3, {})) is None
