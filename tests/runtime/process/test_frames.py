"""Frames of a socket: whole or in pieces, and nothing of what no honest side sends."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmc.runtime.errors import InvalidParameter, NonFiniteLogits, QueueFull, RequestError
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.loop.results import TokenLogprobs
from llmc.runtime.process.frames import MAX_FRAME, BrokenFrame, Frames, frame
from llmc.runtime.process.wire import Row, Submission, plain_rows, plain_submission, read_rows, read_submission
from llmc.runtime.step.params import SamplingParams

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 99), inner),
    max_leaves=9,
)


@given(st.lists(st.lists(PLAIN)), st.integers(1, 50))
def test_messages_come_out_as_they_went_in(messages: list[list[Any]], piece: int) -> None:
    sent = b"".join(frame("kind", *message) for message in messages)
    frames, found = Frames(), list[list[Any]]()
    for at in range(0, len(sent), piece):
        found += frames.feed(sent[at : at + piece])
    assert found == [["kind", *message] for message in messages]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgpack.packb({"a": 1}),
        msgpack.packb([]),
        msgpack.packb([1, "x"]),
        msgpack.packb(["x"]) + b"\0",
        msgpack.packb(["x", msgpack.ExtType(5, b"code")]),
        msgpack.packb(["x"])[:-1],
        b"\xdd\xff\xff\xff\xff",
        b"\x92\xa1x\xa1\xff",
        b"\x91" * 5000,
    ],
)
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(BrokenFrame):
        Frames().feed(struct.pack(">I", len(body)) + body)


def test_any_str_goes_through() -> None:
    assert Frames().feed(frame("kind", "\ud800x", "\U0001f600")) == [["kind", "\ud800x", "\U0001f600"]]


def test_a_frame_is_bounded_before_it_is_read_and_sent() -> None:
    with pytest.raises(BrokenFrame, match="at most"):
        Frames().feed(struct.pack(">I", MAX_FRAME + 1))
    with pytest.raises(BrokenFrame, match="at most"):
        frame("big", bytes(MAX_FRAME))


def through(*message: Any) -> list[Any]:
    ((_, *plain),) = Frames().feed(frame("kind", *message))
    return plain


def test_rows_of_a_step() -> None:
    top = TokenLogprobs(7, -0.25, ((7, -0.25), (1, -3.5)))
    rows = [
        Row(1, 0, 7, top, None, 0, 0, None),
        Row(2**40, 3, 0, None, FinishReason.STOP, 2, 64, None),
        Row(3, 0, 9, None, None, 0, 0, None),
        Row(4, 0, 5, TokenLogprobs(5, -1.0, ()), FinishReason.LENGTH, 0, 0, None),
    ]
    assert read_rows(through(*plain_rows(rows))) == rows
    for error in (NonFiniteLogits("not finite"), InvalidParameter("no"), QueueFull("many"), RequestError("x")):
        (row,) = read_rows(through(*plain_rows([Row(4, 1, None, None, FinishReason.ERROR, 0, 0, error)])))
        assert type(row.error) is type(error) and str(row.error) == str(error)


@pytest.mark.parametrize(
    "plain", [[], [[1]], [[1, 2, 3, 4], [[0, None]]], [[1, 0, 5, 0], [[0, None, ["why", 0, None]]]]]
)
def test_rows_that_cannot_be_read(plain: list[Any]) -> None:
    with pytest.raises(BrokenFrame):
        read_rows(plain)


def test_a_submission_has_every_parameter_but_the_stops() -> None:
    params = SamplingParams(
        temperature=0.5,
        seed=2**64 - 1,
        logit_bias={3: -1.5},
        stop=("x",),
        stop_token_ids=(4,),
        logprobs=0,
        max_tokens=3,
    )
    one = Submission(9, b"\1\0\0\0", params, 2, "batch", -3, "salt", "id")
    found = read_submission(through(plain_submission(one))[0])
    assert found.params == SamplingParams(**{**vars(params), "stop": ()})
    assert {**vars(found), "params": 0} == {**vars(one), "params": 0}


def test_a_submission_that_nobody_sends() -> None:
    plain = plain_submission(Submission(9, b"\1\0\0\0", SamplingParams(seed=1), 1, "batch", 0, "", "id"))
    for at, value in ((0, "9"), (1, b"\1"), (2, {"nonsense": 1}), (3, 0), (3, 65), (7, None)):
        with pytest.raises(BrokenFrame):
            read_submission([*plain[:at], value, *plain[at + 1 :]])
    with pytest.raises(BrokenFrame):
        read_submission(plain[:-1])
