"""What is said between the processes, as types: each kind of message to and from the plain values of a frame.

A step's tokens, the only message that is sent all the time, is made and read by hand; the rest goes by its types.
"""

import dataclasses
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import llmc.runtime.errors as errors
from llmc.runtime.artifact.strict_json import JsonMismatch, from_plain
from llmc.runtime.errors import EngineGone, QueueFull, RuntimeFailure
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import TokenLogprobs
from llmc.runtime.loop.samples import MAX_SAMPLES
from llmc.runtime.process.frames import BrokenFrame, Message
from llmc.runtime.step.limits import LoadOptions
from llmc.runtime.step.params import SamplingParams

T = TypeVar("T")
_FAILURES = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, RuntimeFailure)
}
_NEUTRAL = {name: getattr(SamplingParams(), name) for name in SamplingParams.__dataclass_fields__ if name != "stop"}


@dataclasses.dataclass(frozen=True)
class Start:
    """Load these engines, `folders[name]`, in this order."""

    folders: Mapping[str, str]
    options: LoadOptions
    device: str | None


@dataclasses.dataclass(frozen=True)
class Submission:
    """One prompt for `samples` answers; the parent has drawn the seed. `key` is the parent's name of it."""

    key: int
    ids: bytes  # int32 each
    params: SamplingParams
    samples: int
    latency: str
    priority: int
    salt: str
    request_id: str


@dataclasses.dataclass(slots=True)  # not frozen, as TokenEvent: there is one for each row of each step
class Row:
    """What a step did for one sample. `token` is None where it failed; `reason` is set in the last one."""

    key: int
    sample: int
    token: int | None
    logprobs: TokenLogprobs | None
    reason: FinishReason | None
    preemptions: int
    cached: int
    error: RuntimeFailure | None


def pack_ids(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


def unpack_ids(packed: bytes) -> list[int]:
    return array("i", packed).tolist()


def plain_submission(one: Submission) -> Message:
    """Of the parameters only those that are not neutral, and no stop strings: text is the sender's."""
    params = {name: getattr(one.params, name) for name in _NEUTRAL}
    said = {name: value for name, value in params.items() if value != _NEUTRAL[name]}
    if "logit_bias" in said:
        said["logit_bias"] = dict(said["logit_bias"])
    return [one.key, one.ids, said, one.samples, one.latency, one.priority, one.salt, one.request_id]


def read_submission(plain: Message) -> Submission:
    """Raises InvalidParameter for a parameter that is none, which the sender has checked; BrokenFrame else."""
    kinds = (int, bytes, dict, int, str, int, str, str)
    if len(plain) != len(kinds) or not all(isinstance(v, kind) for v, kind in zip(plain, kinds, strict=False)):
        raise BrokenFrame("a submission has other fields than are known")
    key, ids, said, samples, latency, priority, salt, request_id = plain
    if not set(said) <= set(_NEUTRAL) or not 1 <= samples <= MAX_SAMPLES or len(ids) % 4:
        raise BrokenFrame("a submission holds what nobody sends")
    return Submission(key, ids, SamplingParams(**said), samples, latency, priority, salt, request_id)


def plain_rows(rows: Sequence[Row]) -> Message:
    """Names and tokens of all rows, four numbers each, then what few of them have: log-probabilities and ends."""
    flat: list[int] = []
    extras: list[Any] = []
    for row in rows:
        flat += (row.key, row.sample, -1 if row.token is None else row.token, row.cached)
        if row.logprobs is not None or row.reason is not None:
            top = row.logprobs
            chosen = None if top is None else [top.logprob, *(value for pair in top.top for value in pair)]
            end = None if row.reason is None else [row.reason.value, row.preemptions, plain_failure(row.error)]
            extras.append((len(flat) // 4 - 1, chosen, end))
    return [flat, extras]


def read_rows(plain: Message) -> list[Row]:
    """Raises BrokenFrame."""
    try:
        flat, extras = plain
        rows = [
            Row(key, sample, None if token < 0 else token, None, None, 0, cached, None)
            for key, sample, token, cached in zip(*[iter(flat)] * 4, strict=True)
        ]
        for at, chosen, end in extras:
            _extend(rows[at], chosen, end)
        return rows
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise BrokenFrame(f"rows of a step that cannot be read: {error}") from error


def _extend(row: Row, chosen: Sequence[Any] | None, end: Sequence[Any] | None) -> None:
    if chosen is not None:
        token = -1 if row.token is None else row.token
        row.logprobs = TokenLogprobs(token, chosen[0], tuple(zip(chosen[1::2], chosen[2::2], strict=True)))
    if end is not None:
        reason, row.preemptions, error = end
        row.reason, row.error = FinishReason(reason), read_failure(error)


def plain_failure(error: RuntimeFailure | None) -> list[Any] | None:
    if isinstance(error, QueueFull):
        return [type(error).__name__, str(error), error.retry_after]
    return None if error is None else [type(error).__name__, str(error)]


def read_failure(plain: Sequence[Any] | None) -> RuntimeFailure | None:
    """The very class it had, with the very message."""
    if plain is None:
        return None
    name, *arguments = plain
    return _FAILURES.get(name, EngineGone)(*arguments)


def plain_logprobs(entries: Sequence[TokenLogprobs]) -> Message:
    return [[entry.token_id, entry.logprob, [list(pair) for pair in entry.top]] for entry in entries]


def read_logprobs(plain: Message) -> list[TokenLogprobs]:
    return [TokenLogprobs(token, value, tuple((i, v) for i, v in top)) for token, value, top in plain]


def read_as(kind: type[T], plain: Any) -> T:
    """What `to_plain` made of a dataclass. Raises BrokenFrame."""
    try:
        return from_plain(kind, plain)
    except JsonMismatch as error:
        raise BrokenFrame(f"a {kind.__name__} that is none: {error}") from error
