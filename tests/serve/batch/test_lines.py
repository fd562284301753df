"""Batches over a scripted engine: the format, errors by line, and that the same comes out however often it is torn."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from llmc.runtime.errors import EngineGone, QueueFull
from llmc.serve.batch.drive import answer_lines
from llmc.serve.batch.failure import BatchRefused, BatchStopped
from llmc.serve.batch.journal import Journal
from llmc.serve.batch.lines import read_input
from llmc.serve.batch.run import settle_facts
from tests.serve.batch.lines import chat, completion, mixed, write
from tests.serve.scripted import ScriptedEngine, ScriptedProcess

HEADER = {"llmc_batch": 1, "input": "abc"}


def answered(source: Path, *engines: ScriptedEngine) -> bytes:
    """The output of a run that nothing disturbs."""
    journal, output = source.with_suffix(".journal"), source.with_suffix(".out")
    go_on(source, journal, *engines)
    with Journal.open(journal, HEADER) as whole:
        whole.finish(output, [line.number for line in read_input(source).lines])
    assert not journal.exists()
    return output.read_bytes()


def go_on(source: Path, journal: Path, *engines: ScriptedEngine) -> None:
    async def run() -> None:
        process = ScriptedProcess(*(engines or (ScriptedEngine(),)))
        with Journal.open(journal, HEADER) as open_journal:
            await answer_lines(process, read_input(source), open_journal, lambda _: None)

    asyncio.run(run())


def lines_of(output: bytes) -> list[Any]:
    return [json.loads(line) for line in output.splitlines()]


def test_the_format(tmp_path: Path) -> None:
    source = write(tmp_path / "in", chat("a"), "", completion("b", max_tokens=5, n=2), chat("c", logprobs=True))
    first, second, third = lines_of(answered(source))
    assert [first["custom_id"], second["custom_id"], third["custom_id"]] == ["a", "b", "c"]
    assert set(first) == {"id", "custom_id", "response", "error"} and first["error"] is None
    response = first["response"]
    assert set(response) == {"status_code", "request_id", "body"} and response["status_code"] == 200
    body = response["body"]
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-") and body["created"] == 0
    assert body["choices"][0]["message"]["content"] and body["usage"]["completion_tokens"] > 0
    assert [choice["index"] for choice in second["response"]["body"]["choices"]] == [0, 1]
    assert third["response"]["body"]["choices"][0]["logprobs"]["content"]
    ids = Counter([line["id"] for line in (first, second, third)] + [response["request_id"], body["id"]])
    assert len(ids) == 5


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{no JSON", "invalid_json_line"),
        ("[1]", "invalid_json_line"),
        (json.dumps({**chat("x"), "custom_id": 5}), "invalid_custom_id"),
        (json.dumps({k: v for k, v in chat("x").items() if k != "custom_id"}), "invalid_custom_id"),
        (json.dumps(chat("first")), "duplicate_custom_id"),
        (json.dumps({**chat("x"), "method": "GET"}), "invalid_method"),
        (json.dumps({**chat("x"), "url": "/v1/embeddings"}), "invalid_url"),
        (json.dumps({**chat("x"), "url": ["/v1/completions"]}), "invalid_url"),
        (json.dumps({**chat("x"), "body": "Hi"}), "invalid_request"),
        (json.dumps(chat("x", stream=True)), "invalid_request"),
    ],
)
def test_a_line_that_is_no_request(tmp_path: Path, line: str, code: str) -> None:
    """The others are answered."""
    first, bad, last = lines_of(answered(write(tmp_path / "in", chat("first"), line, chat("last"))))
    assert bad["response"] is None and bad["error"]["code"] == code and bad["error"]["message"]
    assert [one["response"]["status_code"] for one in (first, last)] == [200, 200]


@pytest.mark.parametrize("fields", [{"temperature": -1}, {"model": "another"}, {"nonsense": 1}, {"messages": []}])
def test_a_request_that_the_server_refuses(tmp_path: Path, fields: dict[str, Any]) -> None:
    (line,) = lines_of(answered(write(tmp_path / "in", chat("a", **fields))))
    assert line["error"] is None and line["response"]["status_code"] in (400, 404)
    assert line["response"]["body"]["error"]["message"]


def test_seeds_are_the_line_s(tmp_path: Path) -> None:
    """Each has its own, whatever its place; a seed that is given stays."""
    engine = ScriptedEngine()
    answered(write(tmp_path / "in", completion("a"), completion("b"), completion("c", seed=5)), engine)
    seeds = [stream.params.seed for stream in engine.streams]
    again = ScriptedEngine()
    answered(write(tmp_path / "turned", completion("c", seed=5), completion("b"), completion("a")), again)
    assert sorted(map(str, seeds)) == sorted(str(stream.params.seed) for stream in again.streams)
    assert len(set(seeds)) == 3 and 5 in seeds and None not in seeds


def test_a_journal_that_is_torn_at_any_byte(tmp_path: Path) -> None:
    """What is left of it is kept, and the output is the same."""
    source = write(tmp_path / "in", *mixed(6, 3))
    whole = answered(source)
    journal = tmp_path / "journal"
    go_on(source, journal)
    text = journal.read_bytes()
    for cut in range(0, len(text), 97):
        journal.write_bytes(text[:cut])
        engine = ScriptedEngine()
        go_on(source, journal, engine)
        with Journal.open(journal, HEADER) as open_journal:
            open_journal.finish(tmp_path / "out", [line.number for line in read_input(source).lines])
        assert (tmp_path / "out").read_bytes() == whole
        assert engine.started <= 9 - text[:cut].count(b"\n") + 1
        (tmp_path / "out").unlink()


def test_a_damaged_record_and_what_follows_are_answered_again(tmp_path: Path) -> None:
    source = write(tmp_path / "in", *mixed(6, 3))
    whole = answered(source)
    journal = tmp_path / "journal"
    go_on(source, journal)
    text = bytearray(journal.read_bytes())
    text[len(text) // 2] ^= 1
    journal.write_bytes(text)
    go_on(source, journal)
    with Journal.open(journal, HEADER) as open_journal:
        open_journal.finish(tmp_path / "out", [line.number for line in read_input(source).lines])
    assert (tmp_path / "out").read_bytes() == whole


def test_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    class Busy(ScriptedEngine):
        async def submit(self, *args: Any, **fields: Any) -> Any:
            if self.started == 0 and len(refused) < 3:
                refused.append(1)
                raise QueueFull("3 requests wait already", 0.01)
            return await super().submit(*args, **fields)

    refused: list[int] = []
    (line,) = lines_of(answered(write(tmp_path / "in", completion("a")), Busy()))
    assert line["response"]["status_code"] == 200 and len(refused) == 3


def test_an_engine_that_is_gone_stops_the_batch(tmp_path: Path) -> None:
    """Nothing of it is taken for an answer."""
    source = write(tmp_path / "in", *(completion(f"{at}") for at in range(40)))
    journal = tmp_path / "journal"
    with pytest.raises(BatchStopped, match="no more"):
        go_on(source, journal, ScriptedEngine(refusal=EngineGone("it is no more")))
    assert journal.read_bytes().count(b"\n") == 1


def test_an_engine_that_runs_otherwise_is_refused(tmp_path: Path) -> None:
    facts = {"engine": "abc", "target": "cpu", "max_len": 100}
    with Journal.open(tmp_path / "journal", HEADER) as journal:
        settle_facts(journal, facts)
    with Journal.open(tmp_path / "journal", HEADER) as journal:
        settle_facts(journal, facts)
        with pytest.raises(BatchStopped, match="began with max_len 100, now it is 50"):
            settle_facts(journal, {**facts, "max_len": 50})


def test_another_batch_is_refused_by_what_differs(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with Journal.open(journal, HEADER), pytest.raises(BatchRefused, match="another run is at this batch"):
        Journal.open(journal, HEADER)
    with pytest.raises(BatchRefused, match="another input: abc, now def"):
        Journal.open(journal, {**HEADER, "input": "def"})
    journal.write_text("something of the user's\n")
    with pytest.raises(BatchRefused, match="no journal"):
        Journal.open(journal, HEADER)
    assert journal.read_text() == "something of the user's\n"


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """Lines are read twice: what can be read once only would hang."""
    os.mkfifo(tmp_path / "in")
    with pytest.raises(BatchRefused, match="no regular file"):
        read_input(tmp_path / "in")


def test_an_input_that_changes_under_way(tmp_path: Path) -> None:
    source = write(tmp_path / "in", completion("a"))
    lines = read_input(source)
    write(source, completion("b"))
    with source.open("rb") as file, pytest.raises(BatchStopped, match="line 1 has changed"):
        lines.body(file, lines.lines[0])
