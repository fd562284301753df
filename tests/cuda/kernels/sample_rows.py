"""Rows of logits and sampling choices of every kind, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmc.runtime.step.row_sampling import SAMPLING_RECORD

LOGITS = ("normal", "peaked", "flat", "ties", "equal", "halves", "huge", "tiny", "bad")
FILTERS = ("none", "top_k", "top_p", "min_p", "all", "top_k+top_p", "greedy")
EDITS = ("none", "penalties", "bias", "both", "ban")


@dataclass(frozen=True)
class Choice:
    """One row's choices; keeps the arrays that its record points to."""

    record: np.record
    history: np.ndarray
    bias_ids: np.ndarray
    bias: np.ndarray


def record(**fields: float) -> np.record:
    """A record of a step, neutral but for some fields."""
    made: np.record = np.zeros(1, SAMPLING_RECORD).view(np.recarray)[0]
    for name, value in {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0, **fields}.items():
        made[name] = value
    return made


def logits(rng: np.random.Generator, kind: str, valid: int) -> np.ndarray:
    """f32[valid]: distributions as models make them, and those that break selections."""
    x = rng.standard_normal(valid)
    match kind:
        case "normal":
            x *= 3
        case "peaked":
            x *= 10
        case "flat":
            x *= 1e-3
        case "ties":
            x = np.round(x * 2)
        case "equal":
            x = np.full(valid, 0.25)
        case "halves":  # both zeros, and two levels
            x = np.where(rng.random(valid) < 0.5, -0.0, np.where(rng.random(valid) < 0.5, 0.0, -1.0))
        case "huge":
            x *= 1e30
        case "tiny":  # denormals among them
            x *= 10.0 ** rng.integers(-45, -36, valid)
        case "bad":
            x[rng.integers(valid)] = rng.choice([np.nan, np.inf, -np.inf])
    return x.astype(np.float32)


def choice(rng: np.random.Generator, filters: str, edits: str, valid: int, best: np.ndarray) -> Choice:
    """best: ids with the largest logits, where an edit changes what is chosen."""
    s = record()
    s.temperature = 0.0 if filters == "greedy" else rng.choice([1.0, 1.0, 0.7, 0.1, 3.0, 1e-6, 100.0])
    if "top_k" in filters or filters == "all":
        s.top_k = rng.choice([1, 2, 10, 50, max(1, valid - 1), valid, valid + 5])
    if "top_p" in filters or filters == "all":
        s.top_p = rng.choice([1e-6, 0.1, 0.5, 0.9, 0.95, 0.9999999])
    if filters in ("min_p", "all"):
        s.min_p = rng.choice([1e-9, 1e-3, 0.1, 1.0])
    s.num_logprobs = rng.choice([0, 0, 1, 3, 20])
    s.seed, s.position = int(rng.integers(2**63)), int(rng.integers(2**31))
    s.sample_index = int(rng.integers(5))
    history = np.zeros(0, np.int32)
    if edits in ("penalties", "both"):
        length = int(rng.choice([0, 1, 20, 300]))
        history = rng.integers(-2, valid + 2, length).astype(np.int32)
        likely = rng.random(length) < 0.5
        history[likely] = rng.choice(best, likely.sum())
        history[:2] = (valid, -1)[: len(history)]  # no ids of the vocabulary
        s.prompt_len = int(rng.integers(-1, length + 2))
        s.repetition_penalty = rng.choice([1.0, 1.3, 0.5])
        s.presence_penalty = rng.choice([0.0, 0.6, -0.4])
        s.frequency_penalty = rng.choice([0.0, 0.3, -0.1])
    bias_ids, bias = np.zeros(0, np.int32), np.zeros(0, np.float32)
    if edits in ("bias", "both"):
        bias_ids = rng.integers(-1, valid + 1, 9).astype(np.int32)
        bias_ids[rng.random(9) < 0.4] = rng.choice(best)
        bias_ids[:2] = valid, -1
        bias = (rng.standard_normal(9) * 5).astype(np.float32)
        bias[rng.random(9) < 0.2] = -1e30
    if edits == "ban":
        banned = min(valid if rng.random() < 0.3 else max(1, valid // 2), 2000)
        bias_ids, bias = rng.permutation(valid)[:banned].astype(np.int32), np.full(banned, -np.inf, np.float32)
    s.history, s.history_len = history.ctypes.data, len(history)
    s.bias_ids, s.bias, s.num_bias = bias_ids.ctypes.data, bias.ctypes.data, len(bias)
    return Choice(s, history, bias_ids, bias)


def rows(rng: np.random.Generator, count: int, valid: int, vocab: int) -> tuple[np.ndarray, list[Choice]]:
    """Logits f32[count, vocab], NaN behind the valid ids, and a choice for each row; consecutive rows run through all
    combinations of kinds."""
    table = np.full((count, vocab), np.nan, np.float32)
    chosen = []
    start = int(rng.integers(10**6))
    for i in range(count):
        n = start + i
        table[i, :valid] = logits(rng, LOGITS[n % len(LOGITS)], valid)
        best = np.argsort(-table[i, :valid])[:8]
        chosen.append(choice(rng, FILTERS[n % len(FILTERS)], EDITS[n % len(EDITS)], valid, best))
    return table, chosen


EDGE_IDS = 1000


# What the rows of edges() draw.
EDGE_TOKENS = (403, 255, 255, 999, 403, 700, 9, 488, 106, 888)


def edges() -> tuple[np.ndarray, list[Choice]]:
    """Rows f32[n, EDGE_IDS] in which a bound decides: with any comparison of the kernel shifted by one, another token
    is chosen. Each has the first position at which the token in question runs fastest: a shifted bound keeps it out, or
    lets in one that runs faster still."""
    ids = np.arange(EDGE_IDS)
    tail = np.where(ids == 0, 0.0, -14.0)  # all tokens but one are below 1e-6
    half = np.where(ids < 512, 0.0, -200.0)  # 256 tokens have exactly half of the weight
    spread = np.where(ids < 999, np.where(ids == 0, 0.0, -0.91), -11.5)  # the f32 sum is 2e-7 below the exact one
    nine = np.where((ids == 36) | (ids // 4 == 25) | (ids // 4 == 26), 0.0, -200.0)
    below = np.full(EDGE_IDS, -1.0)
    below[[3, 700]] = 1e-39, 2.0**-126  # a denormal is zero, the smallest normal is not
    cases: list[tuple[np.ndarray, int, dict[str, float]]] = [
        (tail, 222, {}),  # no top_k
        (half, 22286, {"top_p": 0.5}),
        (half, 22286, {"top_p": 0.5, "top_k": 600}),
        (spread, 25776661, {}),  # no top_p: the last token's weight is within the sum's error
        (tail, 222, {"top_k": EDGE_IDS}),
        (below, 0, {"temperature": 0.0}),
        (np.where(ids == 9, 8.0, 0.5), 0, {"repetition_penalty": 2.0}),  # a penalty, and nothing to penalise
        (half, 22286, {"min_p": 1.0}),  # 512 tokens weigh exactly that
        (nine, 0, {"top_k": 9}),  # behind the list's nine lies what thread 9 left there, which would run as id 9
        (spread, 815912, {"top_k": EDGE_IDS, "top_p": 0.8900533}),  # where the sum's error counts; no row behind it
    ]
    chosen = []
    for _, position, fields in cases:
        s = record(**fields)
        s.seed, s.position = 1, position
        nothing = np.zeros(0, np.int32)
        chosen.append(Choice(s, nothing, nothing, np.zeros(0, np.float32)))
    return np.stack([x for x, _, _ in cases]).astype(np.float32), chosen
