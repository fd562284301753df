"""The race that draws a token: how often each wins, what filters and other distributions change, the same bits
everywhere."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from llmc.codegen.cpu.toolchain import find_toolchain
from llmc.runtime.artifact.manifest import MAX_LOGPROBS
from llmc.runtime.step.row_sampling import SAMPLING_RECORD
from tests.kernels.conftest import Kernels, load
from tests.kernels.race_oracle import times
from tests.kernels.test_linear import pointer, random
from tests.kernels.test_sample import Ask, kept_weights

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


def draws(kernels: Kernels, logits: Floats, count: int, seed: int = 11, **fields: float) -> Ints:
    """`count` tokens of one row of logits, or one of each row; positions and samples take turns."""
    rows = np.zeros(count, SAMPLING_RECORD)
    for name, value in {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0, **fields}.items():
        rows[name] = value
    rows["seed"], rows["position"], rows["sample_index"] = seed, np.arange(count) % 500, np.arange(count) // 500
    tokens, logprob = np.zeros(count, np.int32), np.zeros(count, np.float32)
    ids, logprobs = np.zeros((count, MAX_LOGPROBS), np.int32), np.zeros((count, MAX_LOGPROBS), np.float32)
    assert not kernels.lib.run_sample(
        *(pointer(rows), pointer(logits), count, ctypes.c_int64(logits.shape[1] if logits.ndim == 2 else 0)),
        *(logits.shape[-1], pointer(tokens), pointer(logprob), pointer(ids), pointer(logprobs), 2),
    )
    return tokens


def softmax(logits: Floats) -> npt.NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(weights / weights.sum())


def chi_squared(counts: npt.NDArray[np.int64], expected: npt.NDArray[np.float64]) -> float:
    return float(np.sum((counts - expected) ** 2 / expected))


def test_distribution(kernels: Kernels) -> None:
    """Chi-squared over 20,000 draws at p = 0.001."""
    logits = random(3, 16)
    counts = np.bincount(draws(kernels, logits, 20000), minlength=16)
    assert chi_squared(counts, softmax(logits) * 20000) < 37.7  # 15 degrees of freedom


def test_distribution_of_what_filters_leave(kernels: Kernels) -> None:
    """The same of eleven tokens of many: a list of likely ones has them all, and one that is none (1e-9) belongs to
    twelve."""
    logits = np.full(1000, -20.0, np.float32)
    logits[::97] = random(4, 11)
    for top_k in (11, 12):
        counts = np.bincount(draws(kernels, logits, 20000, top_k=top_k), minlength=1000)
        assert chi_squared(counts[::97], softmax(logits)[::97] * 20000) < 29.6  # 10 degrees of freedom


def test_neighbours_in_time_and_place_are_independent(kernels: Kernels) -> None:
    """Tokens of consecutive positions, and of consecutive samples, as pairs: chi-squared at p = 0.001."""
    tokens = draws(kernels, np.zeros(4, np.float32), 20000).reshape(40, 500)
    for first, second in ((tokens[:, ::2], tokens[:, 1::2]), (tokens[::2], tokens[1::2])):
        counts = np.bincount((first * 4 + second).ravel(), minlength=16)
        assert chi_squared(counts, np.full(16, 10000 / 16)) < 37.7


def test_a_tail_of_unlikely_tokens_gets_its_share(kernels: Kernels) -> None:
    """16,383 tokens of a millionth each: how often one of them wins, and which; p = 0.001."""
    logits = np.full(16384, math.log(1e-6), np.float32)
    logits[7] = 0.0
    tokens = draws(kernels, logits, 10000, seed=1)
    rare = tokens[tokens != 7]
    share = 0.016383 / 1.016383
    assert abs(len(rare) - 10000 * share) < 3.29 * math.sqrt(10000 * share * (1 - share))
    for part in (rare % 16, rare // 1024):
        assert chi_squared(np.bincount(part, minlength=16), np.full(16, len(rare) / 16)) < 37.7


@pytest.mark.soak
def test_one_token_of_a_millionth(kernels: Kernels) -> None:
    """20 expected of 2e7 draws: a Poisson count outside of 8..36 has p < 0.001."""
    logits = np.array([0.0, math.log(1e-6)], np.float32)
    assert 8 <= sum(int(draws(kernels, logits, 1_000_000, seed=s).sum()) for s in range(20)) <= 36


def test_the_time_of_a_token_is_exponential_to_its_ends() -> None:
    """Of two million times, the least and the greatest ones, where rounding would show; p = 0.001."""
    clock = times(5, 0, 0, 2_000_000)
    assert clock.min() > 0 and np.isfinite(clock).all()
    for probability in (1e-5, 1e-4):
        mean = len(clock) * probability
        for count in ((clock < -math.log1p(-probability)).sum(), (clock > -math.log(probability)).sum()):
            assert abs(count - mean) < 3.29 * math.sqrt(mean) + 1


@pytest.mark.parametrize("fields", [{"top_k": 40}, {"top_p": 0.9}, {"min_p": 0.02}, {"top_p": 0.99999, "min_p": 1e-8}])
def test_a_winner_that_the_filters_keep_stays_the_winner(kernels: Kernels, fields: dict[str, float]) -> None:
    logits = random(5, 300, 1000) * 3
    ask = Ask(**fields)  # type: ignore[arg-type]
    free = draws(kernels, logits, 300)
    filtered = draws(kernels, logits, 300, top_k=ask.top_k, top_p=ask.top_p, min_p=ask.min_p)
    kept = np.array([kept_weights(row, ask)[token] > 0 for row, token in zip(logits, free, strict=True)])
    assert kept.sum() > 30 and np.array_equal(filtered[kept], free[kept])


@pytest.mark.parametrize("distance", [0.01, 0.3, 1.0])
def test_two_models_that_nearly_agree_draw_the_same(kernels: Kernels, distance: float) -> None:
    """They agree as often as the race says, 1 / sum_j max(p_j / p_i, q_j / q_i) for token i, which is at least
    (1 - TV) / (1 + TV), and more often than two draws that know nothing of each other."""
    count, p_logits = 20000, random(6, 64) * 2
    q_logits = p_logits + np.float32(distance) * random(7, 64)
    p, q = softmax(p_logits), softmax(q_logits)
    agreed = float((draws(kernels, p_logits, count) == draws(kernels, q_logits, count)).mean())
    expected = float(np.sum(1 / np.maximum(p / p[:, None], q / q[:, None]).sum(axis=1)))
    distance_tv = float(np.abs(p - q).sum() / 2)
    error = 3.29 * math.sqrt(expected * (1 - expected) / count)
    assert abs(agreed - expected) < error
    assert agreed > (1 - distance_tv) / (1 + distance_tv) - error
    apart = (draws(kernels, p_logits, count) == draws(kernels, q_logits, count, seed=12)).mean()
    assert agreed > apart + 0.2


@pytest.mark.parametrize("valid", [1, 16, 63, 64, 65, 1000])
def test_every_target_draws_the_same(kernels: Kernels, library_folder: Path, valid: int) -> None:
    """Without filters, whose weights need an exponential, to the bit with or without fused multiply-adds."""
    portable = load("generic", find_toolchain({}), library_folder)
    logits = random(8, 500, valid) * 3
    for temperature in (0.3, 1.0, 50.0):
        here, there = (draws(k, logits, 500, temperature=temperature) for k in (kernels, portable))
        assert np.array_equal(here, there)
