"""Logits and log-probabilities of given sequences: for verifying an engine, and for scoring text."""

from collections.abc import Generator, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.device.protocol import Device
from llmc.runtime.errors import InvalidParameter, NonFiniteLogits, PromptTooLong
from llmc.runtime.kv.blocks import BlockManager, BlockTable
from llmc.runtime.loop.results import TokenLogprobs
from llmc.runtime.step.arrays import StepBuffers


class Scorer:
    """Runs one sequence through the device by itself, with blocks that are free at the moment."""

    def __init__(
        self, device: Device, blocks: BlockManager, buffers: StepBuffers, vocab_size: int, num_valid_tokens: int
    ) -> None:
        self._device = device
        self._blocks = blocks
        self._buffers = buffers
        self._vocab_size = vocab_size
        self._num_valid = num_valid_tokens
        self.tables: set[BlockTable] = set()  # of the sequences that are under way

    def logits(
        self, token_ids: Sequence[int], rows: Sequence[int] | None, chunks: Sequence[int] | None
    ) -> NDArray[np.float32]:
        """Raw logits [R, vocab] at positions `rows`, in the order given."""
        wanted = range(len(token_ids)) if rows is None else rows
        for row in wanted:
            if not _is_integer(row) or not 0 <= row < len(token_ids):
                raise InvalidParameter(f"row {row!r} is not a position in 0..{len(token_ids) - 1}")
        ascending = sorted(set(wanted))
        place = {position: index for index, position in enumerate(ascending)}
        result = np.empty((len(ascending), self._vocab_size), np.float32)
        for positions, logits in self._run(token_ids, ascending, chunks):
            result[place[positions[0]] : place[positions[0]] + len(positions)] = logits
        if list(wanted) == ascending:
            return result
        return result[[place[row] for row in wanted]]

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float64]:
        """Log-probability [n-1] of tokens 1..n-1, each given those before it.

        Float64 log-softmax of the logits that a token can be sampled from, as `logprobs` are: rows that pad the head
        count for nothing, and -inf is the log-probability of what is never sampled.
        """
        result = np.empty(len(token_ids) - 1, np.float64)
        for positions, logits in self._run(token_ids, range(len(token_ids) - 1), None):
            result[positions] = self._chosen(token_ids, positions, self._log_softmax(positions, logits))
        return result

    def entries(self, token_ids: Sequence[int], top: int) -> Generator[list[TokenLogprobs]]:
        """As `score` a step at a time, with the `top` best ids in the place of each token.

        An empty list says that there are no blocks for it at the moment.
        """
        while (table := self._blocks.allocate(len(token_ids))) is None:
            yield []
        for positions, logits in self._run(token_ids, range(len(token_ids) - 1), None, table):
            exact = self._log_softmax(positions, logits)
            chosen = self._chosen(token_ids, positions, exact)
            best = np.argsort(-exact, axis=1, kind="stable")[:, :top]
            yield [
                TokenLogprobs(
                    int(token_ids[position + 1]),
                    float(chosen[row]),
                    tuple((int(i), float(exact[row, i])) for i in best[row]),
                )
                for row, position in enumerate(positions)
            ]

    def _log_softmax(self, positions: Sequence[int], logits: NDArray[np.float32]) -> NDArray[np.float64]:
        """Of the ids that can be sampled. Raises NonFiniteLogits."""
        exact = logits[:, : self._num_valid].astype(np.float64)
        top = exact.max(axis=1)
        total = np.log(np.exp(exact - top[:, None]).sum(axis=1)) + top
        if not np.isfinite(total).all():
            raise NonFiniteLogits(f"logits at positions {positions[0]}..{positions[-1]} are not all finite")
        exact -= total[:, None]
        return exact

    def _chosen(
        self, token_ids: Sequence[int], positions: Sequence[int], exact: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        following = np.asarray(token_ids, dtype=np.int64)[np.asarray(positions) + 1]
        valid = following < self._num_valid
        picked = exact[np.arange(len(positions)), np.where(valid, following, 0)]
        return np.where(valid, picked, -np.inf)

    def _run(
        self,
        token_ids: Sequence[int],
        rows: Sequence[int],
        chunks: Sequence[int] | None,
        table: BlockTable | None = None,
    ) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
        """Yields (positions, logits [len(positions), vocab]) chunk by chunk.

        The logits are reused by the next. `table`, if given, holds the sequence, and is freed.
        """
        limits = self._device.limits
        length = len(token_ids)
        if length > limits.max_seq_len:
            raise PromptTooLong(f"the sequence has {length} tokens; max_seq_len is {limits.max_seq_len}")
        ids = np.asarray(token_ids, dtype=np.int32)
        counts = self._check_chunks(chunks, length) if chunks is not None else self._default_chunks(length, rows)
        table = table or self._blocks.allocate(length)
        if table is None:
            raise PromptTooLong(f"the sequence has {length} tokens and needs {self._blocks.shortage(length, now=True)}")
        self.tables.add(table)
        buffer = np.empty((min(limits.max_rows, length), self._vocab_size), np.float32)
        try:
            start = 0
            for count in counts:
                end = start + count
                inside = [row for row in rows if start <= row < end]
                if len(inside) > limits.max_rows:
                    raise InvalidParameter(
                        f"a chunk wants {len(inside)} rows of logits, max_rows is {limits.max_rows}; load with more"
                    )
                self._compute(ids[start:end], start, table, inside, buffer)
                if inside:
                    yield inside, buffer[: len(inside)]
                start = end
        finally:
            self.tables.remove(table)
            self._blocks.free(table)

    def _compute(
        self, ids: NDArray[np.int32], start: int, table: BlockTable, rows: Sequence[int], logits: NDArray[np.float32]
    ) -> None:
        """One chunk as a step of its own, with the logits of `rows`."""
        end = start + len(ids)
        self._blocks.take(table, end)
        if copies := self._blocks.take_copies():  # for whoever waits for the next step
            self._device.copy_blocks(copies)
        self._buffers.begin(samples=False, logits=logits)
        self._buffers.add_sequence(ids, start, table)
        for row in rows:
            self._buffers.add_row(row - start)
        (self._device.decode if len(ids) == len(rows) == 1 else self._device.prefill)(self._buffers)
        self._blocks.computed(table, end)

    def _default_chunks(self, length: int, rows: Sequence[int]) -> list[int]:
        """As large as the step and the rows in it allow."""
        limits = self._device.limits
        wanted = np.zeros(length, np.int64)
        wanted[list(rows)] = 1
        before = np.concatenate([[0], np.cumsum(wanted)])
        counts: list[int] = []
        start = 0
        while start < length:
            fits = int(np.searchsorted(before, before[start] + limits.max_rows, side="right")) - 1
            counts.append(min(fits, start + limits.max_tokens, length) - start)
            start += counts[-1]
        return counts

    def _check_chunks(self, chunks: Sequence[int], length: int) -> Sequence[int]:
        limit = self._device.limits.max_tokens
        if not all(_is_integer(count) and 1 <= count <= limit for count in chunks) or sum(chunks) != length:
            raise InvalidParameter(f"chunks must be in 1..{limit} and add up to {length}, got {list(chunks)}")
        return chunks


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
