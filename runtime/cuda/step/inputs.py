"""What a step reads, by the names a plan has for it; struct Counts is that of templates/cuda/step.cuh."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.cuda.memory.heap import Heap
from llmc.runtime.cuda.memory.transfer import Block
from llmc.runtime.cuda.step.sampling_stage import SamplingStage
from llmc.runtime.step.arrays import StepBuffers, StepLimits

_INT = 4


class StepInputs:
    """Arrays of the largest step: counts (4 i32), seq_starts [S+1], rows [R], ids, positions and seqs [T], block
    tables tables.<group> [S, counts.table_stride], all i32, and those of sampling."""

    def __init__(self, heap: Heap, limits: StepLimits, sampling: SamplingStage) -> None:
        self._limits = limits
        self._sampling = sampling
        tokens, seqs, rows = limits.max_tokens, limits.max_seqs, limits.max_rows
        lengths = {
            "counts": 4,
            "seq_starts": seqs + 1,
            "rows": rows,
            "ids": tokens,
            "positions": tokens,
            "seqs": tokens,
        }
        self._order = np.arange(seqs, dtype=np.int32)
        self._tables = [f"tables.{group}" for group in range(limits.kv_groups)]
        lengths |= dict.fromkeys(self._tables, seqs * limits.blocks_per_seq)
        self._block = Block(
            heap, {n: _INT * count for n, count in lengths.items()} | dict(sampling.sizes), "step inputs"
        )
        self._arrays = {name: self._block.array(name, np.int32) for name in lengths}
        sampling.use({name: self._block.array(name, np.uint8) for name in sampling.sizes})

    @property
    def addresses(self) -> dict[str, int]:
        return self._block.addresses

    @property
    def num_bytes(self) -> int:
        return self._block.num_bytes

    def send(self, step: StepBuffers, stream: Any) -> None:
        """Queue a step's arrays; no earlier copy may be under way. In most steps they are one copy."""
        tokens, seqs, rows = step.num_tokens, step.num_seqs, step.num_rows
        starts = step.seq_starts[: seqs + 1]
        if tokens == seqs:
            owners, longest = self._order[:seqs], step.positions[:seqs].max()
        else:
            owners, longest = np.repeat(self._order[:seqs], np.diff(starts)), step.positions[starts[1:] - 1].max()
        stride = int(longest) // self._limits.block_tokens + 1
        self._arrays["counts"][:] = tokens, seqs, rows, stride
        self._put("seq_starts", starts)
        self._put("rows", step.rows[:rows])
        self._put("ids", step.token_ids[:tokens])
        self._put("positions", step.positions[:tokens])
        self._put("seqs", owners)
        for name, table in zip(self._tables, step.block_tables, strict=True):
            self._put(name, table[:seqs, :stride].reshape(-1))
        used = {"counts": 4, "seq_starts": seqs + 1, "rows": rows, "ids": tokens, "positions": tokens, "seqs": tokens}
        used |= dict.fromkeys(self._tables, seqs * stride)
        extra = self._sampling.fill(step)
        self._block.to_device({name: _INT * count for name, count in used.items()} | dict(extra), stream)

    def _put(self, name: str, values: NDArray[np.int32]) -> None:
        self._arrays[name][: len(values)] = values
