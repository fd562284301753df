"""Logits and log-probabilities of given sequences: any rows, any chunks, one rule."""

from __future__ import annotations

import random

import numpy as np
import pytest

from llmc.runtime import Engine
from llmc.runtime.errors import InvalidParameter, NonFiniteLogits
from tests.runtime import reference_oracle as oracle


def test_logits_of_any_rows_in_any_chunks(engine: Engine) -> None:
    rng = random.Random(3)
    tokens = [rng.randrange(oracle.VOCAB - 1) for _ in range(37)]
    expected = np.stack([oracle.logits(tokens[: i + 1]) for i in range(37)])
    np.testing.assert_array_equal(engine.logits(tokens), expected)
    np.testing.assert_array_equal(engine.logits(tokens, rows=[36, 0, 5, 5]), expected[[36, 0, 5, 5]])
    np.testing.assert_array_equal(engine.logits(tokens, rows=[20], chunks=[1, 5, 30, 1]), expected[[20]])
    assert engine.logits(tokens, rows=[]).shape == (0, oracle.VOCAB)
    with pytest.raises(InvalidParameter, match="max_rows is 8"):
        engine.logits(tokens, chunks=[37])
    with pytest.raises(InvalidParameter, match="add up to 37"):
        engine.logits(tokens, chunks=[36])
    with pytest.raises(InvalidParameter, match=r"row 37"):
        engine.logits(tokens, rows=[37])


def test_scores_are_log_probabilities_of_the_raw_logits(engine: Engine) -> None:
    tokens = [5, 17, 200, 3, 3, 90]
    scores = engine.score(tokens)
    valid = [oracle.log_softmax(oracle.logits(tokens[:i])[: oracle.NUM_VALID]) for i in range(1, 6)]
    expected = [row[token] for row, token in zip(valid, tokens[1:], strict=True)]
    np.testing.assert_allclose(scores, expected, rtol=1e-12)
    assert engine.score([1]).shape == (0,)
    with pytest.raises(NonFiniteLogits):
        engine.score([1, oracle.POISON, 2])
    assert engine.score([1, oracle.NUM_VALID, 2])[0] == -np.inf  # a row that pads the head is never sampled


def test_scores_and_logprobs_are_of_the_same_rows(engine: Engine) -> None:
    prompt = [5, 17, 200]
    (answer,) = engine.generate([prompt], temperature=0, max_tokens=6, ignore_eos=True, logprobs=3)
    scores = engine.score([*prompt, *answer.token_ids])[len(prompt) - 1 :]
    np.testing.assert_allclose([one.logprob for one in answer.logprobs], scores, rtol=1e-6)
