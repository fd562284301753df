"""What a step reads, by the names a plan has for it; struct Counts is that of templates/cuda/step.cuh."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.cuda.heap import Heap
from llmc.runtime.cuda.staging import Block
from llmc.runtime.prepare import StepBuffers, StepLimits

_INT = 4


class SamplingStage(Protocol):
    """How rows are sampled, as further arrays of a step."""

    def sizes(self, limits: StepLimits) -> Mapping[str, int]:
        """Bytes of each array for the largest step."""

    def fill(self, step: StepBuffers, arrays: Mapping[str, NDArray[np.uint8]]) -> Mapping[str, int]:
        """Write a step's; returns the bytes used of each. A step without sampling gets what does no harm."""


class NoSampling:
    """For plans that read no arrays of sampling."""

    def sizes(self, limits: StepLimits) -> Mapping[str, int]:
        return {}

    def fill(self, step: StepBuffers, arrays: Mapping[str, NDArray[np.uint8]]) -> Mapping[str, int]:
        return {}


class StepInputs:
    """Arrays of the largest step: counts (4 i32), seq_starts [S+1], rows [R], ids, positions and seqs [T], block
    tables tables.<group> [S, counts.table_stride], all i32, and those of sampling."""

    def __init__(self, heap: Heap, limits: StepLimits, kv_groups: int, sampling: SamplingStage) -> None:
        self._limits = limits
        self._sampling = sampling
        self._extra = sampling.sizes(limits)
        tokens, seqs, rows = limits.max_tokens, limits.max_seqs, limits.max_rows
        lengths = {
            "counts": 4,
            "seq_starts": seqs + 1,
            "rows": rows,
            "ids": tokens,
            "positions": tokens,
            "seqs": tokens,
        }
        self._tables = [f"tables.{group}" for group in range(kv_groups)]
        lengths |= dict.fromkeys(self._tables, seqs * limits.blocks_per_seq)
        self._block = Block(heap, {n: _INT * count for n, count in lengths.items()} | dict(self._extra), "step inputs")
        self._arrays = {name: self._block.array(name, np.int32) for name in lengths}
        self._extra_arrays = {name: self._block.array(name, np.uint8) for name in self._extra}

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
        last = step.positions[starts[1:] - 1]
        stride = int(last.max()) // self._limits.block_tokens + 1
        self._put("counts", np.array([tokens, seqs, rows, stride], np.int32))
        self._put("seq_starts", starts)
        self._put("rows", step.rows[:rows])
        self._put("ids", step.token_ids[:tokens])
        self._put("positions", step.positions[:tokens])
        self._put("seqs", np.repeat(np.arange(seqs, dtype=np.int32), np.diff(starts)))
        tables = step.block_tables.reshape(len(self._tables), self._limits.max_seqs, self._limits.blocks_per_seq)
        for name, table in zip(self._tables, tables, strict=True):
            self._put(name, table[:seqs, :stride].reshape(-1))
        used = {"counts": 4, "seq_starts": seqs + 1, "rows": rows, "ids": tokens, "positions": tokens, "seqs": tokens}
        used |= dict.fromkeys(self._tables, seqs * stride)
        extra = self._sampling.fill(step, self._extra_arrays)
        self._block.to_device({name: _INT * count for name, count in used.items()} | dict(extra), stream)

    def _put(self, name: str, values: NDArray[np.int32]) -> None:
        self._arrays[name][: len(values)] = values
