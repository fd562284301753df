"""Random requests of every kind that may cross another's way, each with an answer that it has alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BLOCK = 32  # tokens of a KV block: prompts end around its ends
MAX_LEN = 128
_LETTERS = "etaoinshrdlu"


@dataclass(frozen=True)
class Question:
    """A body without `stream`: how it is asked changes nothing of the answer."""

    path: str
    body: dict[str, Any]

    @property
    def n(self) -> int:
        return int(self.body.get("n", 1))

    @property
    def scores(self) -> bool:
        return self.body.get("max_tokens") == 0


class Manner(Enum):
    """Of a client."""

    PATIENT = "patient"
    SLOW = "slow"
    LEAVES = "leaves"
    WRONG = "wrong"


@dataclass(frozen=True)
class Visit:
    """One request to come. `moment`, from 0 to 1, says when who leaves does so."""

    question: Question
    manner: Manner
    stream: bool = False
    moment: float = 0.0


def questions(
    rng: random.Random, count: int, vocab: int, text: bool = True, lengths: Sequence[int] = (31, 32, 33, 64, 64, 70)
) -> list[Question]:
    """Over a few prefixes of whole blocks and more, each under the same salt, another one, or none.

    Without `text`, for a model that has no tokenizer: no chats, no stop strings.
    """
    prefixes = [[rng.randrange(vocab) for _ in range(length)] for length in lengths]
    return [_question(rng, prefixes, vocab, text) for _ in range(count)]


def visits(rng: random.Random, asked: list[Question], count: int) -> list[Visit]:
    """30 % leave before the end, 10 % read slowly, 5 % ask for nonsense."""
    return [_visit(rng, asked) for _ in range(count)]


def _visit(rng: random.Random, asked: list[Question]) -> Visit:
    manner = rng.choices(list(Manner), (55, 10, 30, 5))[0]
    question = rng.choice(asked)
    streams = not question.scores and question.body.get("best_of") is None
    if manner is Manner.WRONG:
        question = Question(question.path, nonsense(rng, question.body))
    return Visit(question, manner, streams and rng.random() < 0.6, rng.random())


def _question(rng: random.Random, prefixes: list[list[int]], vocab: int, text: bool) -> Question:
    body: dict[str, Any] = {"model": "toy", "return_token_ids": True, "return_tokens_as_token_ids": True}
    body |= rng.choice(({}, {}, {"cache_salt": "red"}, {"cache_salt": "blue"}))
    if text and rng.random() < 0.2:
        said = "".join(rng.choice(_LETTERS) for _ in range(rng.randint(1, 60)))
        body["messages"] = [{"role": "user", "content": said}]
        path = CHAT
    else:
        path, prefix = COMPLETIONS, rng.choice([[], *prefixes])
        body["prompt"] = prefix + [rng.randrange(vocab) for _ in range(rng.choice((1, 2, 7, 31, 32)))]
        if rng.random() < 0.08:
            return Question(path, {**body, "echo": True, "max_tokens": 0, "logprobs": rng.choice((0, 2))})
    body |= {"max_tokens": rng.choice((1, 2, 5, 12, 25)), "ignore_eos": rng.random() < 0.7}
    body |= _sampling(rng, vocab, text) | _watched(rng, path)
    return Question(path, body)


def _sampling(rng: random.Random, vocab: int, text: bool) -> dict[str, Any]:
    """How tokens are chosen, and what stops them."""
    fields: dict[str, Any] = {"temperature": rng.choice((0.0, 0.0, 0.8, 1.4)), "seed": rng.randrange(2**63)}
    if rng.random() < 0.3:
        fields |= {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": -0.2}
    if rng.random() < 0.3:
        fields |= {"top_k": rng.choice((1, 5, 40)), "top_p": 0.9, "min_p": 0.01}
    if rng.random() < 0.3:
        fields["logit_bias"] = {str(rng.randrange(vocab)): rng.uniform(-9, 9) for _ in range(rng.randint(1, 30))}
    if text and rng.random() < 0.4:
        fields["stop"] = rng.sample(_LETTERS + "0123456789., ", rng.randint(1, 16))
    if rng.random() < 0.3:
        fields["stop_token_ids"] = [rng.randrange(vocab) for _ in range(8)]
        fields["min_tokens"] = rng.choice((0, 1))
    if rng.random() < 0.4:
        fields["n"] = rng.randint(2, 4)
    return fields


def _watched(rng: random.Random, path: str) -> dict[str, Any]:
    """What is shown of an answer, and how soon it is wanted."""
    fields: dict[str, Any] = {"latency": rng.choice(("interactive", "standard", "batch"))}
    if rng.random() < 0.4:
        top = rng.choice((0, 1, 5, 20))
        fields |= {"logprobs": True, "top_logprobs": top} if path == CHAT else {"logprobs": top}
    if rng.random() < 0.2:
        fields["priority"] = rng.randint(-3, 3)
    if path == COMPLETIONS and rng.random() < 0.08:
        fields |= {"n": 2, "best_of": 4}
    return fields


def nonsense(rng: random.Random, body: dict[str, Any]) -> dict[str, Any]:
    """A request that is to be refused, before or after the engine has looked at it."""
    wrong: tuple[dict[str, Any], ...] = (
        {"model": "no such"},
        {"temperature": -1},
        {"max_tokens": -1},
        {"n": 17},
        {"logit_bias": {"99999": 1.0}, "max_tokens": 3},
        {"stop": [""]},
        {"no_such_field": 1},
        {"prompt": [1] * (MAX_LEN + 1), "messages": [{"role": "user", "content": "x" * MAX_LEN}]},
        {"prompt": [10**6], "messages": []},
        {"response_format": {"type": "json_object"}},
    )
    changed = {**body, **rng.choice(wrong)}
    changed.pop("messages" if "prompt" in body else "prompt", None)
    return changed
