"""Outputs that are taken where they come from: none is lost, doubled or out of turn, whoever takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from llmc.runtime import Output, SamplingParams
from llmc.runtime.loop.request import FinishReason
from llmc.runtime.process.answers import Answers
from llmc.runtime.process.stream import Stream
from llmc.runtime.process.wire import Row
from tests.runtime.process.serving import run

COUNT = 24


class Read:
    """A stream, its reader's task, and where each output went: `taken` in the callback, `read` by the task."""

    def __init__(self, samples: int, accepts: Callable[[Output], bool]) -> None:
        params = SamplingParams(seed=1)
        self.answers = Answers([1], params, None, samples, lambda sample, reason: None, lambda: None, lambda: None)
        self.stream = Stream("r", self.answers, None)
        self.taken: list[Output] = []
        self.all: list[Output] = []
        self._accepts = accepts
        self.stream.divert(self._take)
        self.reading = asyncio.create_task(self._read())

    def ids(self, sample: int) -> list[int]:
        return [token for output in self.all if output.sample == sample for token in output.token_ids]

    def _take(self, output: Output) -> bool:
        if not self._accepts(output):
            return False
        self.taken.append(output)
        self.all.append(output)
        return True

    async def _read(self) -> None:
        async for output in self.stream:
            self.all.append(output)


def row(number: int, samples: int, reason: FinishReason | None = None) -> Row:
    return Row(1, number % samples, number, None, reason, 0, 0, None)


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("rests", [1, 2, 5])
def test_all_come_once_and_in_order(samples: int, rests: int) -> None:
    """The reader runs after every `rests` tokens only, and every third output is not taken."""

    async def work() -> None:
        answers: Iterator[bool] = iter([True, True, False] * COUNT)
        read = Read(samples, lambda output: next(answers))
        for number in range(COUNT):
            last = number >= COUNT - samples
            read.answers.row(row(number, samples, FinishReason.LENGTH if last else None))
            if number % rests == 0:
                await asyncio.sleep(0)
        await read.reading
        for sample in range(samples):
            assert read.ids(sample) == list(range(sample, COUNT, samples))
        ends = [output for output in read.all if output.finish_reason is not None]
        assert len(ends) == samples and not any(end in read.taken for end in ends)
        assert read.taken or rests > 2  # a reader that has not all yet reads on itself

    run(work)


def test_no_task_is_woken_for_what_is_taken() -> None:
    async def work() -> None:
        read = Read(1, lambda output: True)
        await asyncio.sleep(0)
        for number in range(COUNT):
            read.answers.row(row(number, 1))
        assert len(read.taken) == COUNT
        read.stream.cancel()
        await read.reading
        assert [output.finish_reason for output in read.all[COUNT:]] == [FinishReason.CANCELLED]

    run(work)


def test_a_fault_of_the_taker_is_the_readers() -> None:
    def breaks(output: Output) -> bool:
        raise LookupError("of the taker")

    async def work() -> None:
        read = Read(1, breaks)
        await asyncio.sleep(0)
        read.answers.row(row(0, 1))  # nothing is raised here, in the callback of all streams
        with pytest.raises(LookupError, match="of the taker"):
            await read.reading

    run(work)
