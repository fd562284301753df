"""Log-probabilities in the three forms that clients know: of chats, of completions, and vLLM's of prompts."""

import codecs
from collections.abc import Sequence
from typing import Any

from llmc.runtime.loop.results import TokenLogprobs
from llmc.serve.protocol.token_texts import TokenTexts

_LEAST = -9999.0  # what OpenAI says of what is impossible: JSON has no infinity


class Offsets:
    """Where the tokens of a text begin in it, one after the other: a character counts when its last byte is there."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def take(self, token: int) -> int:
        before = self._characters
        self._characters += len(self._decoder.decode(self._texts.shown(token)))
        return before


class LogprobBodies:
    """`ids_as_tokens`: tokens are written "token_id:17", for those that are no text of their own."""

    def __init__(self, texts: TokenTexts, ids_as_tokens: bool = False) -> None:
        self._texts = texts
        self._ids_as_tokens = ids_as_tokens

    def chat(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return {
            "content": [
                {
                    **self._chat_token(entry.token_id, entry.logprob),
                    "top_logprobs": [self._chat_token(token, logprob) for token, logprob in entry.top],
                }
                for entry in entries
            ],
            "refusal": None,
        }

    def offsets(self) -> Offsets:
        """Of one choice."""
        return Offsets(self._texts)

    def completion(
        self, entries: Sequence[TokenLogprobs | None], ids: Sequence[int], offsets: Offsets
    ) -> dict[str, Any]:
        """`ids` are the entries' tokens: the first of a prompt has no entry. `offsets`: after the tokens before."""
        return {
            "tokens": [self._name(token) for token in ids],
            "token_logprobs": [_finite(entry.logprob) if entry else None for entry in entries],
            "top_logprobs": [self._best(entry) if entry else None for entry in entries],
            "text_offset": [offsets.take(token) for token in ids],
        }

    def prompt(self, entries: Sequence[TokenLogprobs]) -> list[dict[str, Any] | None]:
        """One for each token of the prompt, null for the first, which nothing predicts."""
        return [None, *({**self._ranked(entry)} for entry in entries)]

    def _chat_token(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self._name(token), "logprob": _finite(logprob), "bytes": list(self._texts.raw(token))}

    def _best(self, entry: TokenLogprobs) -> dict[str, float]:
        """The best and the chosen one. Of tokens with the same text, the most probable counts."""
        best = {self._name(token): _finite(logprob) for token, logprob in reversed(entry.top)}
        return {
            **best,
            **({} if self._name(entry.token_id) in best else {self._name(entry.token_id): _finite(entry.logprob)}),
        }

    def _ranked(self, entry: TokenLogprobs) -> dict[str, Any]:
        ranked = {str(token): self._rank(token, logprob, rank + 1) for rank, (token, logprob) in enumerate(entry.top)}
        chosen = self._rank(entry.token_id, entry.logprob, None)
        return {str(entry.token_id): chosen, **ranked}

    def _rank(self, token: int, logprob: float, rank: int | None) -> dict[str, Any]:
        return {"logprob": _finite(logprob), "rank": rank, "decoded_token": self._texts.text(token)}

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self._ids_as_tokens else self._texts.text(token)


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
