"""Requests and pools for tests of the scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from llmc.runtime.kv.blocks import BlockManager
from llmc.runtime.kv.prefix import PrefixChain
from llmc.runtime.kv.retention import Retention
from llmc.runtime.kv.swap import SwapSpace
from llmc.runtime.loop.request import Request, TokenHistory
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.step.row_sampling import RowSampling
from llmc.runtime.step.scheduling import LatencyClass
from tests.runtime.engine_folders import Windows

ROW = RowSampling(SamplingParams(), 0, 1, ())


def request(
    arrival: int,
    prompt: int | Sequence[int],
    latency: LatencyClass = LatencyClass.STANDARD,
    priority: int = 0,
    root: bytes | None = None,
) -> Request:
    """Of a prompt of so many ids, or of these, and shared with others of the same `root`."""
    history = TokenHistory([arrival % 1000] * prompt if isinstance(prompt, int) else prompt)
    prefix = None if root is None else PrefixChain(history, root)
    return Request(arrival, history, len(history), ROW, prefix=prefix, latency=latency, priority=priority)


def blocks(
    *num_blocks: int, block_tokens: int = 4, step_tokens: int = 32, windows: Windows = (None,), slots: int = 0
) -> BlockManager:
    swap = SwapSpace((slots,) * len(windows), (1,) * len(windows), 1e-3)
    return BlockManager([Retention(window, block_tokens, step_tokens) for window in windows], num_blocks, swap=swap)
