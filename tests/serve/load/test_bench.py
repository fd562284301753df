"""`llmc bench` from its command line to its figures, on an engine of the runtime's tests and on a scripted server."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result

from llmc.compiler.commands.cli import main
from tests.serve.load.scripted_server import DONE, MODELS, Scripted, running, said, usage

SMALL = ("--requests", "6", "--prompt-len", "uniform:4-30", "--output-len", "uniform:2-9", "--warmup", "1")
ANSWER = (200, [said("a"), said("bc", "length"), usage(10, 3), DONE])


def bench(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["bench", *(str(word) for word in words)])


def report(path: Path) -> Any:
    return json.loads(path.read_text())


def test_an_engine_in_process(shared_engine: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    done = bench(shared_engine, "--in-process", *SMALL, "--repetitions", "2", "--json", out, "--slo", "e2e:10s")
    assert done.exit_code == 0, done.output
    assert "TTFT" in done.stdout and "medians of 2 rounds" in done.stdout and "round 2 of 2" in done.stderr
    found = report(out)
    (result,) = found["results"]
    assert len(result["repetitions"]) == 2 and result["errors"] == {} and result["load"]["concurrency"] == 8
    assert result["median"]["failed"] == 0 and result["median"]["all"]["good_share"] == 1
    assert result["median"]["output_tokens"] == result["repetitions"][0]["output_tokens"] > 0
    assert result["median"]["kv_peak"] > 0


def test_a_trace_in_process_counts_its_prompts_and_what_was_cached(shared_engine: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [{"prompt": "ab" * 70, "output_len": 3, "class": "interactive"}, {"prompt": [5, 6], "output_len": 2}]
    trace.write_text("\n".join(json.dumps(line) for line in [*lines, lines[0]]))
    words = ("--in-process", "--trace", trace, "--concurrency", "1", "--warmup", "0", "--json", tmp_path / "found.json")
    assert bench(shared_engine, *words).exit_code == 0
    found = report(tmp_path / "found.json")["results"][0]["median"]
    assert found["prompt_tokens"] == 140 + 2 + 140 and found["output_tokens"] == 8
    assert 0 < found["cached_tokens"] < 140


def test_an_engine_behind_a_server_that_the_bench_starts_and_ends(shared_engine: Path, tmp_path: Path) -> None:
    done = bench(shared_engine, *SMALL, "--classes", "interactive=1,batch=1", "--json", tmp_path / "found.json")
    assert done.exit_code == 0, done.output
    (result,) = report(tmp_path / "found.json")["results"]
    assert result["median"]["failed"] == result["median"]["short"] == 0
    assert result["median"]["memory_bytes"] > 1 << 20 and set(result["median"]["by_class"]) == {"interactive", "batch"}
    address = report(tmp_path / "found.json")["subject"]["server"].split()[0]
    with pytest.raises(OSError):
        urlopen(address + "/health", timeout=5)


def test_a_server_that_does_not_start_says_why(shared_engine: Path) -> None:
    done = bench(shared_engine, *SMALL, "--kv-memory", "1")
    assert done.exit_code == 2 and "does not serve" in done.stderr and "KV block" in done.stderr


def test_a_sweep_of_a_server_with_its_picture(tmp_path: Path) -> None:
    out, picture = tmp_path / "found.json", tmp_path / "sweep.png"
    with running(Scripted([ANSWER], MODELS | {"/version": b'{"version": "9"}'})) as url:
        words = ("--url", url, "--vocab-size", "50", "--sweep", "concurrency=1,2", "--price-per-hour", "2")
        done = bench(*words, *SMALL, "--json", out, "--png", picture)
    assert done.exit_code == 0, done.output
    assert "m, " in done.stdout and "(version 9), prompts: token ids" in done.stdout
    found = report(out)
    assert [result["name"] for result in found["results"]] == ["1 in flight", "2 in flight"]
    assert [result["median"]["output_tokens"] for result in found["results"]] == [18, 18]
    assert found["results"][0]["median"]["client"]["cpu"] > 0
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", data[16:24]) >= (1000, 500)


def test_failures_are_counted_shown_and_fail_the_command(tmp_path: Path) -> None:
    full = (429, [b'{"error": {"message": "the queue is full"}}'])
    with running(Scripted([ANSWER, full], MODELS)) as url:
        done = bench("--url", url, *SMALL, "--warmup", "0", "--json", tmp_path / "found.json", "--concurrency", "1")
    assert done.exit_code == 1
    assert "FAILED 3 times: HTTP 429: the queue is full" in done.stdout
    assert "3 requests failed; the figures are those of the others" in done.stderr
    (result,) = report(tmp_path / "found.json")["results"]
    assert result["errors"] == {"HTTP 429: the queue is full": 3} and result["median"]["output_tokens"] == 9


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [{"arrival": at, "prompt": "Why?", "output_len": 3, "class": "batch"} for at in (0.0, 0.05)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    scripted = Scripted([ANSWER], MODELS)
    with running(scripted) as url:
        done = bench("--url", url, "--trace", trace, "--warmup", "0", "--json", tmp_path / "found.json")
    assert done.exit_code == 0, done.output
    assert [(asked["prompt"], asked["latency"]) for asked in scripted.asked] == [("Why?", "batch")] * 2
    (result,) = report(tmp_path / "found.json")["results"]
    assert result["name"] == "as in the trace" and list(result["median"]["by_class"]) == ["batch"]
    assert result["median"]["seconds"] >= 0.05


def test_offline_measures_prefill_and_decode_of_each_batch(shared_engine: Path, tmp_path: Path) -> None:
    words = ("--offline", "--prompt-len", "40", "--output-len", "8", "--batches", "4", "--json", tmp_path / "x.json")
    done = bench(shared_engine, *words)
    assert done.exit_code == 0, done.output
    found = report(tmp_path / "x.json")
    assert found["kind"] == "offline"
    names = ["prefill 40, batch 1", "prefill 40, batch 4", "decode 8 after 40, batch 1", "decode 8 after 40, batch 4"]
    assert [result["name"] for result in found["results"]] == names
    assert all(result["tps"] > 0 for result in found["results"])


def test_ablations_run_the_same_requests_without_a_technique(shared_engine: Path, tmp_path: Path) -> None:
    done = bench(shared_engine, "--ablate", *SMALL, "--json", tmp_path / "found.json", "--concurrency", "4")
    assert done.exit_code == 0, done.output
    assert "times as good with it" in done.stdout
    results = report(tmp_path / "found.json")["results"]
    names = [result["name"] for result in results]
    assert names == ["all techniques", "static batches", "reserved KV", "no prefix cache", "whole prompts"]
    assert len({result["median"]["output_tokens"] for result in results}) == 1


def test_the_names_in_the_report_are_those_of_its_schema(shared_engine: Path, tmp_path: Path) -> None:
    """Programs read them: a change here is a change of SCHEMA."""
    bench(shared_engine, "--in-process", *SMALL, "--json", tmp_path / "found.json", "--price-per-hour", "1")
    found = report(tmp_path / "found.json")
    assert found["schema"] == "llmc-bench/1"
    assert set(found) == {"schema", "llmc", "kind", "subject", "machine", "workload", "results"}
    times = {"mean", "p50", "p90", "p95", "p99"}
    latencies = {"requests", "goodput", "good_share"} | {
        f"{t}.{p}" for t in ("ttft", "tpot", "itl", "e2e") for p in times
    }
    assert _names(found["results"][0]["median"]) == {
        *("requests", "failed", "short", "seconds", "prompt_tokens", "cached_tokens", "output_tokens"),
        *("rps", "output_tps", "total_tps", "padded_tps", "useful_share", "tokens_per_output"),
        *(
            "by_class",
            "kv_peak",
            "memory_bytes",
            "utilisation",
            "price.output",
            "price.total",
            "client.cpu",
            "client.lag",
        ),
        *(f"all.{name}" for name in latencies),
    }


def _names(found: Mapping[str, Any]) -> set[str]:
    names = set()
    for name, value in found.items():
        inner = _names(value) if isinstance(value, dict) and value else None
        names |= {f"{name}.{rest}" for rest in inner} if inner else {name}
    return names


@pytest.mark.parametrize(
    "words, message",
    [
        ((), "give either an engine folder, or --url"),
        (("x", "--url", "http://y"), "give either an engine folder, or --url"),
        (("--url", "http://y", "--offline"), "--offline runs an engine in this process"),
        (("x", "--offline", "--ablate"), "--offline and --ablate are different benches"),
        (("x", "--rate", "1", "--concurrency", "2"), "give one of --concurrency, --rate and --sweep"),
        (("x", "--in-process", "--concurrency", "0"), "at least one request in flight"),
        (("x", "--png", "p.png"), "--png draws a sweep"),
        (("x", "--ablate", "--sweep", "rate=1,2"), "no --sweep"),
        (("x", "--offline", "--output-len", "8"), "give numbers to --prompt-len"),
        (("x", "--json", "no-folder/x.json"), "no such folder to write to"),
        (("x", "--price-per-hour", "0"), "must be more than 0"),
        (("x", "--prefix-share", "2"), "share 2.0 must be in 0..1"),
        (("x", "--extra-body", "[", "--url", "http://127.0.0.1:1"), "give either"),
        (("--url", "http://127.0.0.1:1"), "cannot connect"),
        (("no-engine", "--in-process"), "no-engine"),
    ],
)
def test_refusals_are_one_line(words: tuple[str, ...], message: str) -> None:
    done = bench(*words)
    assert done.exit_code == 2
    assert message in done.stderr and done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
