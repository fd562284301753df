"""What a step computes for its sampled rows, by the names a plan has for it."""

from typing import Any

import numpy as np

from llmc.runtime.artifact.manifest import MAX_LOGPROBS
from llmc.runtime.cuda.memory.heap import Heap
from llmc.runtime.cuda.memory.transfer import Block
from llmc.runtime.step.arrays import StepBuffers, StepLimits

_BYTES = 4


class StepOutputs:
    """Of the largest step: tokens i32[R], logprob f32[R], top_ids i32 and top_logprobs f32[R, MAX_LOGPROBS]."""

    def __init__(self, heap: Heap, limits: StepLimits) -> None:
        rows = limits.max_rows
        lengths = {"tokens": rows, "logprob": rows, "top_ids": rows * MAX_LOGPROBS, "top_logprobs": rows * MAX_LOGPROBS}
        self._block = Block(heap, {name: _BYTES * count for name, count in lengths.items()}, "step outputs")
        self._tokens = self._block.array("tokens", np.int32)
        self._logprob = self._block.array("logprob", np.float32)
        self._top_ids = self._block.array("top_ids", np.int32).reshape(rows, MAX_LOGPROBS)
        self._top_logprobs = self._block.array("top_logprobs", np.float32).reshape(rows, MAX_LOGPROBS)

    @property
    def addresses(self) -> dict[str, int]:
        return self._block.addresses

    @property
    def num_bytes(self) -> int:
        return self._block.num_bytes

    def fetch(self, step: StepBuffers, stream: Any) -> None:
        """Queue the copy of what the step's rows ask for."""
        rows = step.num_rows
        used = {"tokens": rows, "logprob": rows}
        if _wants_top(step):
            used |= {"top_ids": rows * MAX_LOGPROBS, "top_logprobs": rows * MAX_LOGPROBS}
        self._block.to_host({name: _BYTES * count for name, count in used.items()}, stream)

    def read(self, step: StepBuffers) -> None:
        """Hand the results to the step's arrays, once the stream has got there."""
        rows = step.num_rows
        step.out_tokens[:rows] = self._tokens[:rows]
        step.out_logprob[:rows] = self._logprob[:rows]
        if _wants_top(step):
            step.out_top_ids[:rows] = self._top_ids[:rows]
            step.out_top_logprobs[:rows] = self._top_logprobs[:rows]


def _wants_top(step: StepBuffers) -> bool:
    return step.samples and bool(step.sampling["num_logprobs"][: step.num_rows].any())
