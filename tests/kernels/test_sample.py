"""Sampling against a float64 reference written from sample.h's steps."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest

from llmc.runtime.artifact.manifest import MAX_LOGPROBS
from tests.kernels.conftest import Kernels
from tests.kernels.race_oracle import philox, times
from tests.kernels.test_linear import pointer, random

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


class Sampling(ctypes.Structure):
    """LlmcSampling of abi.h."""

    _fields_ = (
        *(
            (n, ctypes.c_float)
            for n in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        ),
        ("top_k", ctypes.c_int32),
        ("num_logprobs", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("sample_index", ctypes.c_uint32),
        ("position", ctypes.c_uint32),
        ("history", ctypes.c_void_p),
        ("history_len", ctypes.c_int32),
        ("prompt_len", ctypes.c_int32),
        ("bias_ids", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("num_bias", ctypes.c_int32),
        ("padding", ctypes.c_int32),
    )


@dataclass
class Ask:
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    top_k: int = 0
    num_logprobs: int = 0
    seed: int = 7
    sample_index: int = 0
    position: int = 0
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    bias: list[tuple[int, float]] = field(default_factory=list)

    def struct(self) -> Sampling:
        self.history = np.array([*self.prompt, *self.output], np.int32)
        self.bias_ids = np.array([i for i, _ in self.bias], np.int32)
        self.bias_values = np.array([b for _, b in self.bias], np.float32)
        return Sampling(
            self.temperature, self.top_p, self.min_p, self.repetition, self.presence, self.frequency, self.top_k,
            self.num_logprobs, self.seed, self.sample_index, self.position, self.history.ctypes.data, self.history.size,
            len(self.prompt), self.bias_ids.ctypes.data, self.bias_values.ctypes.data, len(self.bias), 0,
        )  # fmt: skip


@dataclass(frozen=True)
class Result:
    tokens: Ints
    logprob: Floats
    top_ids: Ints
    top_logprobs: Floats


def sample(kernels: Kernels, logits: Floats, asks: list[Ask], valid: int | None = None, threads: int = 1) -> Result:
    rows, stride = logits.shape
    structs = (Sampling * rows)(*(a.struct() for a in asks))
    result = Result(
        np.full(rows, -7, np.int32), np.zeros(rows, np.float32),
        np.full((rows, MAX_LOGPROBS), -7, np.int32), np.zeros((rows, MAX_LOGPROBS), np.float32),
    )  # fmt: skip
    assert not kernels.lib.run_sample(
        structs, pointer(logits), rows, ctypes.c_int64(stride), stride if valid is None else valid,
        pointer(result.tokens), pointer(result.logprob), pointer(result.top_ids), pointer(result.top_logprobs), threads,
    )  # fmt: skip
    return result


def penalised(logits: Floats, ask: Ask) -> npt.NDArray[np.float64]:
    x = logits.astype(np.float64)
    for i in {t for t in (*ask.prompt, *ask.output) if 0 <= t < x.size}:
        x[i] = x[i] / ask.repetition if x[i] > 0 else x[i] * ask.repetition
        if ask.output.count(i):
            x[i] -= ask.output.count(i) * ask.frequency + ask.presence
    for i, b in ask.bias:
        if 0 <= i < x.size:
            x[i] += b
    return x


def kept_weights(logits: Floats, ask: Ask) -> npt.NDArray[np.float64]:
    """Weights by id, zero where a filter removes the token."""
    x = penalised(logits, ask)
    weights = np.exp((x - x.max()) / ask.temperature)
    order = np.lexsort((np.arange(x.size), -x))
    if ask.top_k:
        order = order[: ask.top_k]
    if ask.top_p < 1:
        reached = np.cumsum(weights[order]) >= ask.top_p * weights[order].sum() * (1 - 1e-12)
        order = order[: int(np.argmax(reached)) + 1]
    kept = np.zeros_like(weights)
    kept[order] = weights[order]
    return np.where(kept < ask.min_p, 0.0, kept)


def race_scores(logits: Floats, ask: Ask) -> npt.NDArray[np.float64]:
    """By id, as if every token took part."""
    x = penalised(logits, ask)
    clock = times(ask.seed, ask.sample_index, ask.position, x.size)
    return np.asarray((x - x.max()) / np.float32(ask.temperature) - np.log(clock))


def winners(logits: Floats, ask: Ask, error: float) -> set[int]:
    """Tokens that the filters leave whose score is the best but for `error`."""
    scores = np.where(kept_weights(logits, ask) > 0, race_scores(logits, ask), -np.inf)
    return set(np.flatnonzero(scores >= scores.max() - error).tolist())


def possible_tokens(logits: Floats, ask: Ask) -> set[int]:
    """Where f32 may have moved a filter's boundary, or the score of an edited logit, by its rounding: both sides'."""
    moved = (replace(ask, top_p=min(ask.top_p * f, 1.0), min_p=ask.min_p * f) for f in (1 - 1e-6, 1 + 1e-6))
    error = 1e-5 if ask.prompt or ask.output or ask.bias else 1e-9
    return set().union(*(winners(logits, near, error) for near in moved))


def test_struct_size_is_the_abis(kernels: Kernels) -> None:
    kernels.lib.sampling_bytes.restype = ctypes.c_int64
    assert kernels.lib.sampling_bytes() == ctypes.sizeof(Sampling)


def test_philox_known_answers(kernels: Kernels) -> None:
    """Random123's kat_vectors for philox4x32-10."""
    vectors = (
        (0, [0, 0, 0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        (2**64 - 1, [0xFFFFFFFF] * 4, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            0x299F31D0A4093822,
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    )
    for key, counter, expected in vectors:
        out = np.zeros(4, np.uint32)
        c = np.array(counter, np.uint32)
        kernels.lib.philox_block(ctypes.c_uint64(key), pointer(c), pointer(out))
        assert list(out) == expected == philox(key, [counter])[0].tolist()


def test_sixteen_counters_at_once(kernels: Kernels) -> None:
    counters = np.random.default_rng(0).integers(0, 2**32, (16, 4), np.uint32)
    by_word, out = np.ascontiguousarray(counters.T), np.zeros((4, 16), np.uint32)
    kernels.lib.philox_lanes(ctypes.c_uint64(2**63 + 12345), pointer(by_word), pointer(out))
    assert np.array_equal(out.T, philox(2**63 + 12345, counters))


@pytest.mark.parametrize("valid", [1, 15, 16, 17, 1000])
def test_greedy_takes_the_lowest_of_equal_ids(kernels: Kernels, valid: int) -> None:
    logits = np.round(random(1, 50, valid) * 2)
    result = sample(kernels, logits, [Ask(temperature=0.0)] * 50)
    assert np.array_equal(result.tokens, np.argmax(logits, axis=1))


ASKS = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 3.0},
    "all but alike": {"temperature": 1000.0},
    "cold": {"temperature": 0.02},
    "top_k of nearly all": {"top_k": 990},
    "top_k beyond the vocabulary": {"top_k": 5000, "top_p": 0.5},
    "top_p of nearly all": {"top_p": 0.9999999},
    "cold with unlikely tokens": {"temperature": 0.1, "top_k": 500, "top_p": 0.99},
    "min_p tiny": {"min_p": 1e-9},
    "top_k": {"top_k": 10},
    "top_k 1": {"top_k": 1},
    "top_p": {"top_p": 0.8},
    "top_p tiny": {"top_p": 1e-6},
    "min_p": {"min_p": 0.1},
    "min_p 1": {"min_p": 1.0},
    "all filters": {"top_k": 50, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
    "repetition": {"repetition": 1.5, "prompt": [3, 3, 5], "output": [900, 5]},
    "penalties": {"presence": 0.7, "frequency": 0.4, "repetition": 1.1, "prompt": [1, 2], "output": [2, 8, 8, 8]},
    "bias": {"bias": [(4, 5.0), (9, -100.0), (4, 1.0)]},
}


@pytest.mark.parametrize("name", ASKS)
@pytest.mark.parametrize("ties", [False, True])
def test_matches_float64(kernels: Kernels, name: str, ties: bool) -> None:
    rows = 200
    logits = random(2, rows, 1000) * 3
    if ties:
        logits = np.round(logits)
    asks = [Ask(**ASKS[name], position=i, seed=2**40 + i) for i in range(rows)]  # type: ignore[arg-type]
    got = sample(kernels, logits, asks).tokens
    for i in range(rows):
        if got[i] not in winners(logits[i], asks[i], 1e-9):
            assert got[i] in possible_tokens(logits[i], asks[i]), f"row {i}"


def test_top_p_is_of_what_top_k_leaves(kernels: Kernels) -> None:
    """Ten equal tokens, as many as top_k; the others, each a little below a millionth of them, are not in the sum."""
    logits = np.full((300, 1000), np.log(9e-7), np.float32)
    logits[:, 100:110] = 0.0
    asks = [Ask(top_k=10, top_p=0.9, position=i) for i in range(300)]
    assert set(sample(kernels, logits, asks).tokens) == set(range(100, 109))


def test_tiny_temperature_is_greedy(kernels: Kernels) -> None:
    logits = random(4, 20, 300)
    for temperature in (1e-6, 1e-30, 1e-42):
        got = sample(kernels, logits, [Ask(temperature=temperature)] * 20).tokens
        assert np.array_equal(got, np.argmax(logits, axis=1))


def test_padding_ids_are_never_chosen_nor_counted(kernels: Kernels) -> None:
    logits = random(5, 8, 512)
    plain = sample(kernels, np.ascontiguousarray(logits[:, :500]), [Ask(num_logprobs=20)] * 8)
    logits[:, 500:] = np.where(np.arange(12) % 2 == 0, 50.0, np.nan)
    padded = sample(kernels, logits, [Ask(num_logprobs=20)] * 8, valid=500)
    for a, b in zip(vars(plain).values(), vars(padded).values(), strict=True):
        assert np.array_equal(a, b)


def test_logprobs_are_of_raw_logits(kernels: Kernels) -> None:
    logits = np.round(random(6, 6, 300) * 4) * np.float32(0.5)
    asks = [
        Ask(temperature=0.0, num_logprobs=n, repetition=2.0, output=[5], bias=[(11, 50.0)])
        for n in (0, 1, 2, 5, 19, 20)
    ]
    result = sample(kernels, logits, asks)
    wide = logits.astype(np.float64)
    logprobs = wide - wide.max(axis=1, keepdims=True)
    logprobs -= np.log(np.exp(logprobs).sum(axis=1, keepdims=True))
    assert (result.tokens == 11).all()
    assert np.allclose(result.logprob, logprobs[:, 11], atol=2e-6)
    for row, ask in enumerate(asks):
        n = ask.num_logprobs
        order = np.lexsort((np.arange(300), -wide[row]))[:n]
        assert np.array_equal(result.top_ids[row, :n], order)
        assert np.allclose(result.top_logprobs[row, :n], logprobs[row, order], atol=2e-6)
        assert (result.top_ids[row, n:] == -7).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_logit_gives_no_token(kernels: Kernels, bad: float) -> None:
    logits = random(7, 3, 100)
    logits[1, 63] = bad
    result = sample(kernels, logits, [Ask(num_logprobs=2)] * 3)
    assert result.tokens[1] == -1 and np.isnan(result.logprob[1]) and (result.top_ids[1, :2] == -1).all()
    assert (result.tokens[[0, 2]] >= 0).all()


def test_everything_banned_gives_no_token(kernels: Kernels) -> None:
    logits = random(8, 1, 4)
    assert sample(kernels, logits, [Ask(bias=[(i, -np.inf) for i in range(4)])]).tokens[0] == -1


def test_ids_outside_of_the_vocabulary_are_ignored(kernels: Kernels) -> None:
    logits = random(9, 1, 100)
    ask = Ask(
        temperature=0.0,
        repetition=5.0,
        frequency=1.0,
        prompt=[-1, 2**31 - 1],
        output=[100, -(2**31)],
        bias=[(10**6, 9.0), (-1, 9.0)],
    )
    assert sample(kernels, logits, [ask]).tokens[0] == np.argmax(logits[0])


def test_threads_do_not_matter(kernels: Kernels) -> None:
    logits = random(10, 13, 700)
    asks = [Ask(top_p=0.9, num_logprobs=3, position=i, output=[i], presence=0.5) for i in range(13)]
    one = sample(kernels, logits, asks)
    for threads in (2, 3):
        for a, b in zip(vars(one).values(), vars(sample(kernels, logits, asks, threads=threads)).values(), strict=True):
            assert np.array_equal(a, b)
