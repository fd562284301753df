"""A batch as the arrays of one step. The buffers are allocated once and reused by every step."""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.cpu.library import MAX_LOGPROBS, LlmcSampling, LlmcStep
from llmc.runtime.kv.blocks import NO_BLOCK, BlockTable
from llmc.runtime.loop.schedule import Batch, Chunk


@dataclass(frozen=True)
class StepLimits:
    """The largest step: T tokens of S sequences with R rows of logits, none longer than `max_seq_len`.

    A sequence has a table of blocks of `block_tokens` positions for each of `kv_groups` groups.
    """

    max_tokens: int
    max_seqs: int
    max_rows: int
    max_seq_len: int
    block_tokens: int
    kv_groups: int

    @property
    def blocks_per_seq(self) -> int:
        return -(-self.max_seq_len // self.block_tokens)


class StepBuffers:
    """Host memory of one step, laid out as abi.h wants it.

    Every array is the caller's until the step returns.
    """

    def __init__(self, limits: StepLimits) -> None:
        self.limits = limits
        tokens, seqs, rows = limits.max_tokens, limits.max_seqs, limits.max_rows
        self.token_ids = np.zeros(tokens, np.int32)
        self.positions = np.zeros(tokens, np.int32)
        self.seq_starts = np.zeros(seqs + 1, np.int32)
        self.block_tables = np.full((limits.kv_groups, seqs, limits.blocks_per_seq), NO_BLOCK, np.int32)
        self.rows = np.zeros(rows, np.int32)
        self.sampling = (LlmcSampling * rows)()
        self.out_tokens = np.zeros(rows, np.int32)
        self.out_logprob = np.zeros(rows, np.float32)
        self.out_top_ids = np.zeros((rows, MAX_LOGPROBS), np.int32)
        self.out_top_logprobs = np.zeros((rows, MAX_LOGPROBS), np.float32)
        self.num_tokens = self.num_seqs = self.num_rows = 0
        self.struct = LlmcStep(block_table_stride=limits.blocks_per_seq)
        for name in ("token_ids", "positions", "seq_starts", "block_tables", "rows"):
            setattr(self.struct, name, _address(getattr(self, name)))
        for name in ("out_tokens", "out_logprob", "out_top_ids", "out_top_logprobs"):
            setattr(self.struct, name, _address(getattr(self, name)))
        self._sampling_pointer = ctypes.cast(self.sampling, ctypes.POINTER(LlmcSampling))
        self._no_sampling = ctypes.POINTER(LlmcSampling)()

    def fill(self, batch: Batch) -> list[Chunk]:
        """Lay out a batch. Returns the chunks that sample, one per row, in row order."""
        self._clear()
        sampled = [chunk for chunk in batch.chunks if chunk.samples]
        for chunk in batch.chunks:
            tokens = chunk.request.tokens
            ids = tokens.ids[chunk.start : chunk.start + chunk.count]
            self._add_sequence(ids, chunk.start, chunk.blocks)
            if chunk.samples:
                self.rows[self.num_rows] = self.num_tokens - 1
                self.sampling[self.num_rows] = chunk.request.sampling.at(tokens.address, len(tokens))
                self.num_rows += 1
        self._finish(self._sampling_pointer, None)
        return sampled

    def fill_scoring(
        self,
        ids: NDArray[np.int32],
        start: int,
        blocks: BlockTable,
        rows: NDArray[np.int32],
        logits: NDArray[np.float32],
    ) -> None:
        """Lay out one chunk of one sequence.

        Raw logits of `rows` (offsets in the chunk) go to `logits` [R, vocab].
        """
        self._clear()
        self._add_sequence(ids, start, blocks)
        self.num_rows = len(rows)
        self.rows[: self.num_rows] = rows
        self._finish(self._no_sampling, _address(logits))

    def _clear(self) -> None:
        self.num_tokens = self.num_seqs = self.num_rows = 0

    def _add_sequence(self, ids: NDArray[np.int32], start: int, blocks: BlockTable) -> None:
        first, end = self.num_tokens, self.num_tokens + len(ids)
        self.token_ids[first:end] = ids
        self.positions[first:end] = start if len(ids) == 1 else np.arange(start, start + len(ids), dtype=np.int32)
        for group in range(self.limits.kv_groups):
            ids_of_blocks = blocks.block_ids(group)
            self.block_tables[group, self.num_seqs, : len(ids_of_blocks)] = ids_of_blocks
        self.num_tokens = end
        self.num_seqs += 1
        self.seq_starts[self.num_seqs] = end

    def _finish(self, sampling: Any, logits: int | None) -> None:
        struct = self.struct
        struct.num_tokens, struct.num_seqs, struct.num_rows = self.num_tokens, self.num_seqs, self.num_rows
        struct.sampling = sampling
        struct.logits = logits


def _address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)
