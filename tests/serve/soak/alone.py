"""The answer that a question has alone: in this process, one sample at a time, no cache, room for everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from llmc.runtime import Engine, SamplingParams
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import TokenLogprobs
from llmc.runtime.text.answer import Answer
from llmc.serve.protocol.chat import read_chat
from llmc.serve.protocol.completions import read_completion
from llmc.serve.protocol.generation import Generation
from tests.serve.soak.answers import Choice, Logprob
from tests.serve.soak.questions import CHAT, Question


class Alone:
    """Answers are remembered: the same question is asked many times."""

    def __init__(self, folder: Path) -> None:
        self.engine = Engine.load(folder, threads=1, prefix_cache=False)
        self._known: dict[int, list[Choice]] = {}

    def answer(self, question: Question) -> list[Choice]:
        if id(question) not in self._known:
            self._known[id(question)] = self._find(question)
        return self._known[id(question)]

    def close(self) -> None:
        self.engine.close()

    def _find(self, question: Question) -> list[Choice]:
        if question.scores:
            return [self._scored(question)]
        generation, ids = self._read(question)
        params = generation.params(self.engine)
        asked = params if generation.best_of is None or params.logprobs is not None else _with_logprobs(params)
        answers = [self._sample(ids, asked, sample) for sample in range(generation.num_samples)]
        if generation.best_of is not None:
            answers.sort(key=lambda one: -sum(entry.logprob for entry in one[0].logprobs))
        shown = params.logprobs is not None
        return [self._choice(*one, question, shown) for one in answers[: generation.n]]

    def _read(self, question: Question) -> tuple[Generation, Sequence[int]]:
        if question.path == CHAT:
            chat = read_chat(question.body)
            return chat.generation, self.engine.encode_chat(chat.messages, **chat.variables)
        completion = read_completion(question.body)
        (prompt,) = completion.prompts
        assert isinstance(prompt, list)
        return completion.generation, prompt

    def _sample(self, ids: Sequence[int], params: SamplingParams, sample: int) -> tuple[Answer, FinishReason]:
        core, answer = self.engine.core, Answer(params, self.engine.tokenizer, ids)
        assert params.seed is not None
        request = core.request(ids, params, params.seed, sample)
        core.add(request)
        while (events := core.step()) is not None:
            for event in events:
                assert event.token is not None, event.error
                output = answer.accept(event.token, event.logprobs, event.reason)
                if output.finish_reason is not None:
                    core.finish(request, output.finish_reason)
                    return answer, output.finish_reason
        raise AssertionError("an answer without an end")

    def _choice(self, answer: Answer, reason: FinishReason, question: Question, logprobs: bool) -> Choice:
        shown = self._entries(answer.logprobs, question.path) if logprobs else []
        return Choice(list(answer.token_ids), answer.text, reason.value, shown)

    def _scored(self, question: Question) -> Choice:
        ids, top = question.body["prompt"], question.body["logprobs"]
        scored = [entry for entries in self.engine.core.scored(ids, top) for entry in entries]
        assert self.engine.tokenizer is not None
        return Choice([], self.engine.tokenizer.decode(ids), "length", [None, *self._entries(scored, question.path)])

    def _entries(self, entries: Iterable[TokenLogprobs], path: str) -> list[Logprob | None]:
        found: list[Logprob | None] = []
        for entry in entries:
            best = dict(entry.top) if path == CHAT else {**dict(entry.top), entry.token_id: entry.logprob}
            found.append((entry.token_id, entry.logprob, tuple(sorted(best.items()))))
        return found


def _with_logprobs(params: SamplingParams) -> SamplingParams:
    """Best of several is found by them."""
    return SamplingParams(**{**vars(params), "logprobs": 0})
