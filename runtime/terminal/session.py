"""A loaded engine at a terminal or in a pipe: text in, the answer streamed to `out`, everything else to `notices`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TextIO

from llmc.runtime.errors import ChatTemplateError, InvalidParameter
from llmc.runtime.loop.engine import Engine
from llmc.runtime.loop.results import Completion, Output
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.terminal.console import Interrupts, Waiting, printable
from llmc.runtime.text.chat import Message

# What a user may set, by the names of SamplingParams, and how each is read.
SETTINGS: Mapping[str, type] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "seed": int,
    "max_tokens": int,
    "stop": str,
}
_SAMPLED_ONLY = ("top_k", "top_p", "min_p", "seed")


class Session:
    """Raises ChatTemplateError where the model cannot chat, or has no place for the system message; InvalidParameter.

    `stated`: fields of SamplingParams that the user gave; the model's own defaults stand behind them.
    """

    def __init__(
        self,
        engine: Engine,
        stated: Mapping[str, Any],
        out: TextIO,
        notices: TextIO,
        *,
        system: str | None = None,
        raw: bool = False,
        figures: bool = True,
    ) -> None:
        self._engine = engine
        self._out = out
        self._notices = notices
        self.raw = raw
        self.figures = figures
        self.params: SamplingParams = engine.sampling(**stated)
        self.system: str | None = None
        if not raw:
            _ = engine.chat_template  # say now, not after the first line, that there is none
        if system is not None:
            self.set_system(system)
        idle = [name for name in _SAMPLED_ONLY if name in stated]
        if idle and self.params.temperature == 0 and "temperature" not in stated and figures:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
            self.notice(f"{flags}: without effect, for this model is greedy by default; add --temperature 0.8, say")

    def set_system(self, text: str) -> None:
        """The system message of every later answer; an empty one is none. Raises ChatTemplateError."""
        if self.raw:
            raise InvalidParameter("a system message is a part of the chat template, which --raw leaves out")
        if text:
            user: Message = {"role": "user", "content": "?"}
            if self._engine.encode_chat([_system(text), user]) == self._engine.encode_chat([user]):
                raise ChatTemplateError("the model's chat template has no place for a system message; leave it out")
        self.system = text or None

    def set(self, name: str, text: str) -> None:
        """Change a setting from its text. Raises InvalidParameter."""
        if (kind := SETTINGS.get(name)) is None:
            raise InvalidParameter(f"{name!r} is no setting; there are {', '.join(SETTINGS)}")
        try:
            value = kind(text)
        except ValueError:
            wanted = "an integer" if kind is int else "a number"
            raise InvalidParameter(f"{name} must be {wanted}, got {text!r}") from None
        fields: dict[str, Any] = {name: (value,) if name == "stop" else value}
        self.params = replace(self.params, **fields)

    def answer(self, messages: Sequence[Message]) -> Completion:
        """Stream the answer to a conversation, or in raw mode the continuation of its last message.

        Ctrl-C ends it between two steps. Raises RequestError where it is refused or fails.
        """
        ids, num_left_out = self._ids(messages)
        completion = self._stream(ids, num_left_out)
        self._out.write("\n")
        self._out.flush()
        if self.figures and completion.token_ids:
            self.notice(f"[{describe_timing(completion)}]")
        if completion.error is not None:
            raise completion.error
        return completion

    def notice(self, text: str) -> None:
        """A line for the user that is no part of an answer."""
        self._notices.write(printable(text, self._notices) + "\n")
        self._notices.flush()

    def _ids(self, messages: Sequence[Message]) -> tuple[list[int], int]:
        """And how many of the oldest messages the context has no room for."""
        if self.raw:
            return self._engine.encode(messages[-1]["content"]), 0
        first = [_system(self.system)] if self.system else []
        fitted = self._engine.fit_chat([*first, *messages], self.params.max_tokens)
        return fitted.ids, fitted.num_dropped

    def _stream(self, ids: list[int], num_left_out: int) -> Completion:
        outputs: list[Output] = []
        with Interrupts() as interrupts, Waiting("reading the prompt", self._notices) as waiting:
            handle = self._engine.submit(ids, self.params, on_output=outputs.append)
            if num_left_out and self.figures:
                self.notice(f"[the context is full: the oldest {num_left_out} messages are left out]")
            while handle.completion is None:
                # A long prompt takes many steps before the first output: Ctrl-C ends it between any two.
                handle.cancel() if interrupts.seen else self._engine.step()
                if outputs:
                    waiting.over()
                    self._write(outputs)
            return handle.completion

    def _write(self, outputs: list[Output]) -> None:
        for output in outputs:
            self._out.write(printable(output.text, self._out))
        outputs.clear()
        self._out.flush()


def describe_timing(completion: Completion) -> str:
    """One line of figures: TTFT, TPOT = (E2E - TTFT) / (N - 1), prefill and decode tokens per second."""
    timing, count = completion.timing, len(completion.token_ids)
    parts = [
        f"{completion.prompt_len} prompt + {count} tokens",
        f"TTFT {timing.ttft * 1e3:.1f} ms",
        f"prefill {completion.prompt_len / timing.ttft:.1f} tok/s",
    ]
    tpot = timing.tpot(count)
    if tpot:
        parts += [f"TPOT {tpot * 1e3:.2f} ms", f"decode {1 / tpot:.1f} tok/s"]
    return " | ".join(parts)


def _system(text: str) -> Message:
    return {"role": "system", "content": text}
