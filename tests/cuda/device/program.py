"""Checks of the answers of the CUDA device, in any company, schedule and state of its graphs (checks.py)."""

from __future__ import annotations

import logging

import numpy as np

from llmc.runtime import SamplingParams
from llmc.runtime.errors import StepFailed
from llmc.runtime.loop.request import TokenHistory
from llmc.runtime.step.row_sampling import SAMPLING_RECORD, RowSampling
from tests.cuda.device.checks import ASK, FOLDER, MODEL, forget_error, loaded, prompts, refusal, run
from tests.cuda.device.refusing_driver import refusing
from tests.cuda.device.toy_engine import MAX_BATCH, MAX_TOKENS, VALID, H
from tests.cuda.driver.cuda_calls import download
from tests.cuda.kernels.cpu_sample import cpu_sample


def answers_in_any_company() -> None:
    """Prompts in chunks, batches that join and leave, solo: all as numpy computes them."""
    asked = prompts(9)
    counts = [3 + i % 5 for i in range(9)]
    expected = [MODEL.answer(p, n) for p, n in zip(asked, counts, strict=True)]
    for options in ({}, {"max_tokens": 7, "max_batch": 4}, {"max_batch": 1, "max_tokens": 3}):
        with loaded("toy", **options) as engine:
            handles = [engine.submit(p, max_tokens=n, **ASK) for p, n in zip(asked, counts, strict=True)]
            found = [list(h.result().token_ids) for h in handles]
            assert found == expected, (options, found, expected)
            engine.check_integrity()


def sampling_is_as_the_cpu_s() -> None:
    """Temperature, filters, penalties, biases and seeds of a batch, against the CPU's sampler on numpy's logits."""
    evens = tuple(range(0, VALID, 2))
    choices = [
        SamplingParams(temperature=40.0, seed=3, top_k=20, logprobs=2, max_tokens=8),
        SamplingParams(
            temperature=60.0, seed=2**63, repetition_penalty=1.5, presence_penalty=3.0, max_tokens=8, logprobs=0
        ),
        SamplingParams(
            temperature=0, logit_bias={4: -100.0, 7: 50.0}, frequency_penalty=2.0, max_tokens=8, logprobs=20
        ),
        SamplingParams(
            temperature=30.0,
            top_p=0.8,
            min_p=0.01,
            seed=9,
            min_tokens=5,
            stop_token_ids=evens,
            logprobs=1,
            max_tokens=8,
        ),
        SamplingParams(temperature=20.0, seed=1, max_tokens=8),
    ]
    asked = prompts(len(choices), seed=8)
    with loaded("toy") as engine:
        completions = engine.generate(asked, choices)
    for completion, prompt, params in zip(completions, asked, choices, strict=True):
        stop = frozenset(params.stop_token_ids)
        history, row = TokenHistory(prompt), RowSampling(params, completion.seed, len(prompt), stop)
        record = np.zeros(1, SAMPLING_RECORD)
        assert len(completion.token_ids) >= 5
        for index, token in enumerate(completion.token_ids):
            logits = np.ascontiguousarray(MODEL.logits(history.ids.tolist())[-1:])
            row.write(record.view(np.uint8).data, 0, history.address, len(history))
            expected = cpu_sample(logits, record, VALID)
            assert token == expected.tokens[0], (params, index)
            if params.logprobs is not None:
                found = completion.logprobs[index]
                assert np.float32(found.logprob) == expected.logprob[0]
                top = [(int(i), float(v)) for i, v in zip(expected.top_ids[0], expected.top_logprobs[0], strict=True)]
                assert list(found.top) == top[: params.logprobs]
            history.append(token)


def logits_of_any_rows_in_any_chunks() -> None:
    (ids,) = prompts(1, seed=3, longest=60)
    ids = (ids * 5)[:37]
    expected = MODEL.logits(ids)
    with loaded("toy", max_rows=30) as engine:
        for rows, chunks in ((None, None), ([36, 0, 5, 5], None), ([20], [1, 5, 30, 1]), (list(range(30)), [30, 7])):
            found = engine.logits(ids, rows=rows, chunks=chunks)
            np.testing.assert_array_equal(found, expected if rows is None else expected[rows])
        np.testing.assert_array_equal(engine.logits([7])[0], MODEL.logits([7])[0])


def padding_is_inert() -> None:
    """Rows beyond the counts of a step, in buckets larger than it, stay as they were at load: zero."""
    with loaded("toy") as engine:
        engine.generate(prompts(3, longest=5), max_tokens=3, **ASK)  # buckets of 4 sequences, of 16 tokens
        resident = engine.device._resident  # type: ignore[attr-defined]
        arena = resident.addresses
        with resident.context.current():
            h = download(arena.arena, (MAX_TOKENS, H), np.float32)
            rows = download(arena.arena + arena.layout.token_bytes, (MAX_BATCH, H), np.float32)
            done = download(arena.scratch["done"], (1,), np.int32)
        used = max(np.flatnonzero(h.any(1))) + 1
        assert 3 <= used < 16, used
        assert rows[:3].any(1).all() and not rows[3:].any(), rows[:, 0]
        assert done[0] == 0


def graphs_are_made_once_per_bucket() -> None:
    with loaded("toy") as engine:
        engine.generate(prompts(6), max_tokens=4, **ASK)
        engine.generate(prompts(2), max_tokens=4, **ASK)
        graphs = engine.device._entries  # type: ignore[attr-defined]
        ready = {entry: dict(g._ready) for entry, g in graphs.items()}
        assert {s.seqs for s in ready["decode"]} <= {1, 2, 4, 6} and len(ready["decode"]) >= 2, ready["decode"]
        engine.generate(prompts(6, seed=4), max_tokens=4, **ASK)
        engine.generate(prompts(2, seed=4), max_tokens=4, **ASK)
        for entry, g in graphs.items():
            assert all(g._ready[s] is e for s, e in ready[entry].items())


def preemption_gives_the_same_answers() -> None:
    asked = prompts(6, longest=12)
    expected = [MODEL.answer(p, 12) for p in asked]
    with loaded("toy", kv_memory=12 * 512) as engine:
        found = engine.generate(asked, max_tokens=12, **ASK)
        assert sum(c.num_preemptions for c in found) > 0
        assert [list(c.token_ids) for c in found] == expected


def a_driver_without_programmatic_edges() -> None:
    """The same answers, by graphs of full edges; told once for both entries, and not asked for again."""
    asked = prompts(4)
    expected = [MODEL.answer(p, 5) for p in asked]
    for function in ("cuGraphAddDependencies", "cuGraphInstantiate"):
        told: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record, told=told: told.append(record.getMessage())  # type: ignore[misc, method-assign]
        edges: list[int] = []
        logging.getLogger("llmc").addHandler(handler)
        try:
            with refusing(function, edges), loaded("toy") as engine:
                first = list(engine.generate(asked[:1], max_tokens=5, **ASK)[0].token_ids)
                before = len(edges)
                found = [list(c.token_ids) for c in engine.generate(asked, max_tokens=5, **ASK)]
        finally:
            logging.getLogger("llmc").removeHandler(handler)
        assert first == expected[0] and found == expected, (function, first, found, expected)
        assert len(edges) == before >= 1, (function, before, edges)
        assert len(told) == 1 and f"programmatic edges ({function}" in told[0], told


def every_missing_edge_shows() -> None:
    """Engines `edge-<launch>-<before>` lack one edge each: checked twins report a race."""
    names = sorted(path.name for path in FOLDER.glob("edge-*"))
    assert len(names) == 11, names
    for name in names:
        with loaded(name) as engine:
            text = refusal(StepFailed, lambda e=engine: e.generate([[1, 2, 3, 4, 5]], max_tokens=2, **ASK))
            assert "race" in text or "uninitialised read" in text, (name, text)
            forget_error()


if __name__ == "__main__":
    run(globals())
