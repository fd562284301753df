"""R18: what is kept for a reader who takes nothing is bounded, whatever the number of his answers."""

from __future__ import annotations

import pytest

from llmc.runtime import SamplingParams
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.process.answers import MAX_UNREAD, Answers
from llmc.runtime.process.wire import Row

KEPT = MAX_UNREAD // (64 + 24 * 20)  # tokens with twenty alternatives each


def fed(answers: Answers, tokens: int) -> bool:
    """Whether they all went in before it ended."""
    for number in range(tokens):
        answers.row(Row(1, number % len(answers.samples), 5, None, None, 0, 0, None))
    return not answers.done


def answers_of(samples: int) -> Answers:
    params = SamplingParams(seed=1, logprobs=20)
    return Answers([1], params, None, samples, lambda sample, reason: None, lambda: None, lambda: None)


@pytest.mark.parametrize("samples", [1, 16])
def test_who_falls_behind_is_cancelled(samples: int) -> None:
    answers = answers_of(samples)
    assert fed(answers, KEPT)
    answers.take()
    assert fed(answers, KEPT) and not fed(answers, 1)
    for sample in answers.samples:
        assert sample.completion is not None and sample.completion.finish_reason is FinishReason.CANCELLED
        assert "fell behind" in str(sample.completion.error)


def test_who_waits_for_the_whole_is_not() -> None:
    answers = answers_of(16)
    answers.collected = True
    assert fed(answers, 3 * KEPT)
