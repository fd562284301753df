"""The loop of the child: take what the parent says, step what has something to do, tell what came of it."""

import socket
import time
from collections.abc import Sequence
from typing import Any

from llmc.runtime.artifact.strict_json import to_plain
from llmc.runtime.errors import RuntimeFailure
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.process.frames import BrokenFrame, Frames, Message, frame
from llmc.runtime.process.serving import Serving
from llmc.runtime.process.snapshot import snapshot
from llmc.runtime.process.wire import plain_failure, plain_logprobs, plain_rows, read_submission, unpack_ids

STATS_EVERY = 0.25  # seconds, while there is work


class ParentGone(Exception):
    """The other end of the socket is closed."""


class ChildLoop:
    """One thread. Sending blocks while the parent does not read, and so does the stepping: nothing piles up here."""

    def __init__(self, link: socket.socket, frames: Frames, servings: Sequence[Serving]) -> None:
        self._link = link
        self._frames = frames
        self._servings = servings
        self._told_at = 0.0
        self._rested = False  # and said so
        self._closing = False

    def run(self) -> int:
        """Until the parent says close. Raises ParentGone, BrokenFrame, OSError."""
        while not self._closing:
            if self._idle and not self._rested:
                self._tell_stats()
                self._rested = True
            self._take(wait=self._idle)
            if self._idle:
                continue
            self._rested = False
            try:
                for number, serving in enumerate(self._servings):
                    self._work(number, serving)
            except RuntimeFailure as error:
                self._send("dying", plain_failure(error))
                return 1
            if time.monotonic() - self._told_at >= STATS_EVERY:
                self._tell_stats()
        return 0

    @property
    def _idle(self) -> bool:
        return all(serving.idle for serving in self._servings)

    def _work(self, number: int, serving: Serving) -> None:
        """A step of the requests, then one of a score: neither keeps the other waiting for longer than that.

        After each the parent is heard, who asks now and then whether steps still end.
        """
        rows = serving.step()
        if rows:
            self._send("tokens", number, *plain_rows(rows))
        self._take(wait=False)
        scored = serving.score_chunk()
        if scored is not None:
            key, entries, done, error = scored
            if entries or done:
                self._send("scored", number, key, plain_logprobs(entries), done, plain_failure(error))
            self._take(wait=False)

    def _take(self, wait: bool) -> None:
        """All messages that are there; at least one, if there is nothing else to do."""
        while True:
            try:
                piece = self._link.recv(1 << 18, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not piece:
                raise ParentGone
            for message in self._frames.feed(piece):
                wait = False
                self._obey(message)

    def _obey(self, message: Message) -> None:
        match message:
            case ["submit", int() as number, [*plain]] if 0 <= number < len(self._servings):
                rows = self._servings[number].submit(read_submission(plain))
                if rows:
                    self._send("tokens", number, *plain_rows(rows))
            case ["abort", int() as number, int() as key, int() as sample, str() as reason]:
                self._servings[number].abort(key, FinishReason(reason), None if sample < 0 else sample)
            case ["score", int() as number, int() as key, bytes() as ids, int() as top]:
                self._servings[number].score(key, unpack_ids(ids), top)
            case ["ping", int() as count]:
                self._send("pong", count)
            case ["close"]:
                self._closing = True
            case _:
                raise BrokenFrame(f"a message {message[0]!r} with fields that are not known")

    def _tell_stats(self) -> None:
        self._told_at = time.monotonic()
        for number, serving in enumerate(self._servings):
            self._send("stats", number, to_plain(snapshot(serving)))

    def _send(self, *message: Any) -> None:
        self._link.sendall(frame(*message))
