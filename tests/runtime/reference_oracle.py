"""What reference_device.cc must answer, computed from the tokens alone: no blocks, no batches, no chunks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from llmc.runtime import SamplingParams

VOCAB = 320
NUM_VALID = 262  # 256 bytes, 3 merges, 3 control tokens
BLOCK_TOKENS = 4
POISON = VOCAB - 1  # a token after which every logit is NaN
NAP = VOCAB - 2  # a token that takes 300 ms to compute
STUCK = VOCAB - 3  # a token that is never through
SALT = 0x1234_5678_9ABC_DEF0
_MASK = 2**64 - 1


def mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def logits(tokens: Sequence[int], window: int | None = None) -> NDArray[np.float32]:
    """Raw logits [VOCAB] float32 after the last of `tokens`, of which the last `window` count."""
    h = SALT
    for position, token in list(enumerate(tokens))[-(window or len(tokens)) :]:
        h = mix(h ^ int(token) ^ (position << 32))
    return np.array(
        [(mix((h + v * 0xD6E8FEB86659FD93) & _MASK) >> 40) / 2097152.0 - 4.0 for v in range(VOCAB)], np.float32
    )


def log_softmax(values: NDArray[np.float32]) -> NDArray[np.float64]:
    exact = values.astype(np.float64)
    top = float(exact.max())
    return np.asarray(exact - (top + math.log(sum(math.exp(v - top) for v in exact))))


def _f32(x: float) -> float:
    """The ABI carries floats."""
    return float(np.float32(x))


def choose(
    raw: NDArray[np.float32],
    tokens: Sequence[int],
    prompt_len: int,
    params: SamplingParams,
    seed: int,
    forbidden: Collection[int] = (),
    sample: int = 0,
) -> int:
    """The token that the documented sampling order chooses after `tokens`."""
    values = [float(v) for v in raw[:NUM_VALID]]
    for v in set(tokens):
        if v < NUM_VALID:
            penalty = _f32(params.repetition_penalty)
            values[v] = values[v] / penalty if values[v] > 0 else values[v] * penalty
    output = list(tokens[prompt_len:])
    for v in set(output):
        values[v] -= _f32(params.presence_penalty) + _f32(params.frequency_penalty) * output.count(v)
    for v, bias in params.logit_bias.items():
        if v not in forbidden:
            values[v] += _f32(bias)
    for v in forbidden:
        values[v] += _f32(-1e30)
    order = sorted(range(NUM_VALID), key=lambda v: -values[v])
    temperature = _f32(params.temperature)
    if temperature == 0:
        return order[0]
    order = order[: params.top_k or NUM_VALID]
    weights = [math.exp((values[v] - values[order[0]]) / temperature) for v in order]
    total = 0.0
    for weight in weights:
        total += weight
    kept, count = 0.0, 0
    while count < len(order) and kept < _f32(params.top_p) * total:
        kept += weights[count]
        count += 1
    while count > 1 and weights[count - 1] < _f32(params.min_p) * weights[0]:
        count -= 1
    row = mix(mix(mix(seed) ^ sample) ^ len(tokens))
    times = {
        v: -math.log(((mix(row ^ v) >> 12) + 0.5) / 4503599627370496.0) / weight
        for v, weight in zip(order[:count], weights, strict=False)
        if weight > 0
    }
    return min(times, key=lambda v: (times[v], v))


def generate(
    prompt: Sequence[int],
    params: SamplingParams,
    seed: int,
    eos: Iterable[int] = (),
    max_len: int = 10**9,
    window: int | None = None,
    sample: int = 0,
) -> tuple[list[int], list[float]]:
    """(output tokens, chosen log-probabilities) of a request by itself, stop ids included."""
    tokens, logprobs = list(prompt), []
    stop_ids = (set() if params.ignore_eos else set(eos)) | set(params.stop_token_ids)
    limit = min(max_len - len(prompt), params.max_tokens or 10**9)
    while len(tokens) - len(prompt) < limit:
        raw = logits(tokens, window)
        early = len(tokens) - len(prompt) < params.min_tokens
        token = choose(raw, tokens, len(prompt), params, seed, stop_ids if early else (), sample)
        logprobs.append(float(np.float32(log_softmax(raw[:NUM_VALID])[token])))
        tokens.append(token)
        if token in stop_ids:
            break
    return tokens[len(prompt) :], logprobs
