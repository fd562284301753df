"""What llmc_create allocates for steps (templates/cpu/engine_abi.h), as numbers that are known at build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmc.codegen.memory import round_line
from llmc.codegen.packing import round_up

SPLIT = 256  # positions: templates/cpu/attention_tile.h
SPLIT_HEADER = 16  # floats: templates/cpu/attention.h
POOL_BYTES = 16  # LlmcKvPool: templates/cpu/abi.h
FLOAT = 4


@dataclass(frozen=True)
class AttentionShape:
    """Of one or more attention layers of a model."""

    q_heads: int
    kv_heads: int
    value_dim: int

    @property
    def split_bytes(self) -> int:
        """attention_scratch_bytes of one worker and one split."""
        return 4 * (self.q_heads // self.kv_heads) * (round_up(self.value_dim, 16) + SPLIT_HEADER) * FLOAT


@dataclass(frozen=True)
class CpuArena:
    """arena_layout: KV pools, the sequence of each token, rows of buffers, then the scratch of every worker.

    `buffers_per_token`: those of the launch plans, without the token's sequence.
    """

    kv_groups: int
    buffers_per_token: int
    per_row: int
    attention: Sequence[AttentionShape]
    num_valid_tokens: int

    @property
    def constant(self) -> int:
        return round_line(self.kv_groups * POOL_BYTES)

    @property
    def per_token(self) -> int:
        return self.buffers_per_token + 4

    def per_thread(self, max_seq_len: int) -> int:
        """Scratch of attention, by what the longest sequence needs, and of sampling."""
        splits = -(-max_seq_len // SPLIT)
        attention = splits * max((shape.split_bytes for shape in self.attention), default=0)
        return attention + 5 * round_up(self.num_valid_tokens, 16) * FLOAT
