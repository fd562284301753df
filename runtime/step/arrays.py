"""A batch as the arrays of one step. The buffers are allocated once and reused by every step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.artifact.manifest import MAX_LOGPROBS
from llmc.runtime.kv.blocks import NO_BLOCK, BlockTable
from llmc.runtime.step.row_sampling import SAMPLING_RECORD, RowSampling


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
    """Host memory of one step: T tokens of S sequences, of which R rows get logits and, if so, a sampled token.

    Its arrays are as long as the largest step, and stay where they are. A device reads the first, and writes those of
    outputs, while the step runs.
    """

    def __init__(self, limits: StepLimits) -> None:
        self.limits = limits
        tokens, seqs, rows = limits.max_tokens, limits.max_seqs, limits.max_rows
        self.num_tokens = self.num_seqs = self.num_rows = 0
        self.token_ids = np.zeros(tokens, np.int32)
        self.positions = np.zeros(tokens, np.int32)  # ascending by one inside a sequence
        self.seq_starts = np.zeros(seqs + 1, np.int32)  # sequence i owns tokens seq_starts[i] .. seq_starts[i+1]-1
        # [groups, S, blocks]: enough for the last position of each, NO_BLOCK behind the window of its first token
        self.block_tables = np.full((limits.kv_groups, seqs, limits.blocks_per_seq), NO_BLOCK, np.int32)
        self.rows = np.zeros(rows, np.int32)  # token whose logits are wanted, ascending
        self.samples = False  # whether rows get a token, each as its record says
        self.sampling = np.zeros(rows, SAMPLING_RECORD)
        self._records = self.sampling.view(np.uint8).data
        self._next_positions, self._history_lens = self.sampling["position"], self.sampling["history_len"]
        self._histories = self.sampling["history"]
        self._order = np.arange(seqs + 1, dtype=np.int32)
        # What the first rows of tables and records hold since an earlier step, where nothing has overwritten it.
        self._tables: list[BlockTable | None] = [None] * seqs
        self._versions = [0] * seqs
        self._samplings: list[RowSampling | None] = [None] * seqs
        self.logits: NDArray[np.float32] | None = None  # [R, vocab], where raw logits go
        self.out_tokens = np.zeros(rows, np.int32)  # -1 where the logits were not finite
        self.out_logprob = np.zeros(rows, np.float32)
        self.out_top_ids = np.zeros((rows, MAX_LOGPROBS), np.int32)  # best first
        self.out_top_logprobs = np.zeros((rows, MAX_LOGPROBS), np.float32)

    def begin(self, *, samples: bool, logits: NDArray[np.float32] | None = None) -> None:
        """A step of nothing yet. Its rows get tokens if it `samples`, and raw logits go to `logits`."""
        self.num_tokens = self.num_seqs = self.num_rows = 0
        self.samples, self.logits = samples, logits

    def set_decoding(
        self,
        last_ids: Sequence[int],
        lengths: Sequence[int],
        tables: list[BlockTable],
        samplings: list[RowSampling],
        histories: Sequence[int],
    ) -> None:
        """The first sequences, each with its last token, whose next one is chosen; `histories` are addresses of all.

        Those that stand where they stood in the last step of these arrays cost a few numbers each.
        """
        count = len(lengths)
        self.token_ids[:count] = last_ids
        self.positions[:count] = lengths
        self.positions[:count] -= 1
        self.seq_starts[: count + 1] = self._order[: count + 1]
        self.rows[:count] = self._order[:count]
        versions = [table.version for table in tables]
        if tables != self._tables[:count] or versions != self._versions[:count]:
            self._renew_tables(tables, versions)
        self._next_positions[:count] = self._history_lens[:count] = lengths
        self._histories[:count] = histories
        for row, sampling in enumerate(samplings):
            if sampling is not self._samplings[row] or sampling.varies:
                sampling.write(self._records, row, histories[row], lengths[row])
                self._samplings[row] = sampling
        self.num_tokens = self.num_seqs = self.num_rows = count

    def add_sequence(self, ids: NDArray[np.int32], start: int, blocks: BlockTable) -> None:
        """Tokens of the next sequence, at positions `start` and up."""
        count, first, seq = len(ids), self.num_tokens, self.num_seqs
        self._tables[seq] = None
        end = first + count
        if count == 1:
            self.token_ids[first], self.positions[first] = ids[0], start
        else:
            self.token_ids[first:end] = ids
            self.positions[first:end] = np.arange(start, start + count, dtype=np.int32)
        self._set_table(seq, blocks)
        self.num_tokens, self.num_seqs = end, seq + 1
        self.seq_starts[seq + 1] = end

    def add_row(self, token: int) -> None:
        """A row of logits, for a token of the step (counted over all sequences) behind those of earlier rows."""
        self.rows[self.num_rows] = token
        self.num_rows += 1

    def add_sampled_row(self, token: int, sampling: RowSampling, history_address: int, history_len: int) -> None:
        """A row whose next token is chosen, after `history_len` ids that lie at `history_address`."""
        if self.num_rows < len(self._samplings):
            self._samplings[self.num_rows] = None
        sampling.write(self._records, self.num_rows, history_address, history_len)
        self.add_row(token)

    def _renew_tables(self, tables: list[BlockTable], versions: list[int]) -> None:
        for seq, (table, version) in enumerate(zip(tables, versions, strict=True)):
            if table is not self._tables[seq] or version != self._versions[seq]:
                self._set_table(seq, table)
        self._tables[: len(tables)] = tables
        self._versions[: len(tables)] = versions

    def _set_table(self, seq: int, table: BlockTable) -> None:
        for group in range(self.limits.kv_groups):
            ids = table.block_ids(group)
            self.block_tables[group, seq, : len(ids)] = ids
