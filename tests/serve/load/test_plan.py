"""Workloads: what is drawn, how it is distributed, and that a seed draws it again."""

from __future__ import annotations

import json
import math
import statistics
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from llmc.serve.load.campaign import Load, Workload
from llmc.serve.load.lengths import Fixed, LogNormal, Uniform, parse_lengths
from llmc.serve.load.options import parse_sweep
from llmc.serve.load.plan import Mix, Planned, SharedPrefixes, parse_classes, poisson_arrivals
from llmc.serve.load.prompts import IdPrompts, TextPrompts
from llmc.serve.load.refusal import BenchRefused
from llmc.serve.load.trace import read_trace

MIX = Mix(32, Uniform(32, 512), Uniform(16, 256))


def test_lengths_are_what_they_are_called() -> None:
    assert parse_lengths("128") == parse_lengths("fixed:128") == Fixed(128)
    assert parse_lengths("uniform:32-512") == Uniform(32, 512)
    assert parse_lengths("lognormal:200,0.8,2000") == LogNormal(200, 0.8, 2000)


@pytest.mark.parametrize(
    "text",
    ["", "0", "-3", "1.5", "uniform:5", "uniform:9-3", "uniform:0-3", "lognormal:1,2", "lognormal:9,-1,9", "x:1"],
)
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(BenchRefused, match="write 128"):
        parse_lengths(text)


def test_uniform_lengths_reach_both_ends_and_log_normal_ones_have_their_median() -> None:
    random = Random(1)
    assert {Uniform(3, 5).draw(random) for _ in range(100)} == {3, 4, 5}
    drawn = [LogNormal(200, 0.8, 2000).draw(random) for _ in range(4001)]
    assert 190 < statistics.median(drawn) < 210 and max(drawn) == 2000 and min(drawn) >= 1
    logs = [math.log(length) for length in drawn if length < 2000]
    assert 0.75 < statistics.stdev(logs) < 0.85


def test_the_mix_of_the_peers_recipes_is_drawn() -> None:
    """32 requests, 32..512 in and 16..256 out, seed 7: prompt and answer in turns from one generator."""
    random = Random(7)
    expected = [(random.randint(32, 512), random.randint(16, 256)) for _ in range(32)]
    assert [(planned.prompt_len, planned.output_len) for planned in MIX.draw(7)] == expected


def test_a_seed_draws_the_same_and_another_seed_another() -> None:
    mix = Mix(20, Uniform(1, 99), Fixed(3), SharedPrefixes(0.5, 7, 3), {"a": 1.0, "b": 1.0})
    assert mix.draw(1) == mix.draw(1) != mix.draw(2)
    lengths = [planned.prompt_len for planned in mix.draw(1)]
    assert lengths == [planned.prompt_len for planned in Mix(20, Uniform(1, 99), Fixed(3)).draw(1)]
    assert Workload(mix, 3).plan(Load(rate=5.0)) == Workload(mix, 3).plan(Load(rate=5.0))


def test_poisson_arrivals_have_their_rate_and_exponential_gaps() -> None:
    arrivals = poisson_arrivals(20001, 4.0, 1)
    gaps = [after - before for before, after in pairwise(arrivals)]
    assert arrivals[0] == 0 and min(gaps) > 0
    assert math.isclose(statistics.mean(gaps), 0.25, rel_tol=0.03)
    assert math.isclose(statistics.stdev(gaps), 0.25, rel_tol=0.05)  # of an exponential: its mean
    assert math.isclose(sum(gap > 0.25 for gap in gaps) / len(gaps), math.exp(-1), rel_tol=0.05)


def test_shares_of_prefixes_and_classes() -> None:
    drawn = Mix(4000, Fixed(9), Fixed(1), SharedPrefixes(0.25, 100, 4), {"a": 3.0, "b": 1.0}).draw(5)
    shared = [planned for planned in drawn if planned.prefix_len]
    assert 0.22 < len(shared) / 4000 < 0.28 and {planned.prefix for planned in shared} == {0, 1, 2, 3}
    assert {planned.input_len for planned in drawn} == {9, 109}
    assert 0.72 < sum(planned.latency == "a" for planned in drawn) / 4000 < 0.78


def test_prompts_of_ids_share_what_they_should_and_nothing_else() -> None:
    plan = [Planned(0, 5, 1, prefix_len=20), Planned(1, 8, 1, prefix_len=20), Planned(2, 8, 1, prefix=1, prefix_len=20)]
    one, two, three = (IdPrompts(range(1000)).make(planned, "s") for planned in plan)
    assert (len(one), len(two)) == (25, 28)
    assert one[:20] == two[:20] != three[:20] and one[20:23] != two[20:23]
    assert IdPrompts(range(1000)).make(plan[0], "s") == one != IdPrompts(range(1000)).make(plan[0], "t")


def test_prompts_of_text_have_as_many_words_as_tokens() -> None:
    prompt = TextPrompts().make(Planned(0, 5, 1, prefix_len=20), "s")
    assert isinstance(prompt, str) and len(prompt.split()) == 25
    with pytest.raises(BenchRefused, match="takes text only"):
        TextPrompts().make(Planned(0, 2, 1, given=(1, 2)), "s")
    assert IdPrompts(range(9)).make(Planned(0, 2, 1, given=(1, 2)), "s") == [1, 2]


def test_a_trace_is_read_in_order_of_arrival(tmp_path: Path) -> None:
    lines = [
        {"arrival": 2.5, "prompt": "Why?", "output_len": 3, "class": "interactive"},
        {"arrival": 1, "prompt_len": 7, "output_len": 4},
        {"arrival": 1.5, "prompt": [5, 6], "output_len": 1},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    assert read_trace(path) == [
        Planned(0, 7, 4, arrival=1.0),
        Planned(1, 2, 1, arrival=1.5, given=(5, 6)),
        Planned(2, 0, 3, arrival=2.5, latency="interactive", given="Why?"),
    ]


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "Expecting"),
        ("[]", "a line is an object"),
        ('{"prompt_len": 1, "output_len": 1, "tokens": 2}', "unknown field 'tokens'"),
        ('{"output_len": 1}', "either prompt or prompt_len"),
        ('{"prompt_len": 0, "output_len": 1}', "prompt_len is 0"),
        ('{"prompt_len": 3}', "output_len is None"),
        ('{"prompt": [true], "output_len": 1}', "a token is True"),
        ('{"prompt_len": 3, "output_len": 1, "arrival": -1}', "arrival is -1"),
    ],
)
def test_a_bad_line_of_a_trace_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"prompt_len": 3, "output_len": 1}\n' + line)
    with pytest.raises(BenchRefused, match=rf"trace.jsonl:2: .*{message}"):
        read_trace(path)


def test_arrivals_are_in_all_lines_or_in_none(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"prompt_len": 3, "output_len": 1}\n{"prompt_len": 3, "output_len": 1, "arrival": 1}')
    with pytest.raises(BenchRefused, match="1 of 2 lines have an arrival"):
        read_trace(path)


def test_classes_and_sweeps() -> None:
    assert parse_classes("interactive=3,batch") == {"interactive": 3.0, "batch": 1.0}
    assert parse_sweep("concurrency=1,8") == [Load(concurrency=1), Load(concurrency=8)]
    assert parse_sweep("rate=0.5,2") == [Load(rate=0.5), Load(rate=2.0)]
    for bad in ("concurrency=0", "rate=-1", "rate=nan", "rate=x", "speed=1", "concurrency"):
        with pytest.raises(BenchRefused):
            parse_sweep(bad)
    for bad in ("a=0", "=1", "a=x", "a=inf", ""):
        with pytest.raises(BenchRefused):
            parse_classes(bad)
