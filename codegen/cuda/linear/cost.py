"""What a linear's launch costs on a GPU, by a model of what bounds it. Predictions to compare candidates with, not
measurements; docs/gpu-status.md says what stands in for one."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.codegen.cuda.cost.launches import SM_L2_BYTES, SM_MEMORY_BYTES
from llmc.codegen.cuda.linear.params import STEP, LinearMmaParams, LinearParams, LinearWgmmaParams
from llmc.codegen.cuda.target.assumptions import ASSUMED
from llmc.codegen.cuda.target.gpus import Gpu
from llmc.ir.types import DType

SMEM_BYTES = 128  # bytes a clock out of shared memory
START = 1.5e-6  # seconds: first bytes of a block on their way, last results on theirs
JOIN = 1.5e-6  # seconds: partial sums out, an atomic, partial sums back


@dataclass(frozen=True)
class Cost:
    """Seconds of one launch and what they are made of. `blocks` of the grid that have work, `resident` at a time."""

    seconds: float
    load: float
    multiply: float
    blocks: int
    resident: int

    def __str__(self) -> str:
        return (
            f"{self.seconds * 1e6:.1f} us: predicted of {self.blocks} blocks, {self.resident} at a time, "
            f"bytes {self.load * 1e6:.1f} us, MMA {self.multiply * 1e6:.1f} us"
        )


def blocks_per_sm(p: LinearParams, gpu: Gpu) -> int:
    """How many blocks live on a multiprocessor at a time (1 KiB of shared memory of each is the system's)."""
    return max(1, min(p.blocks_per_sm, gpu.smem_sm // (p.smem_bytes + 1024), gpu.threads_sm // p.threads))


def cost(p: LinearParams, tokens: int, gpu: Gpu) -> Cost:
    """Of one launch for `tokens` rows."""
    s, t = p.shape, p.tile
    steps = -(-s.k // STEP)
    block_steps = min(steps, s.slice_k // STEP) if p.is_split else steps
    blocks = p.out_tiles * p.token_tiles(tokens) * (s.num_slices if p.is_split else 1)
    per_sm = blocks_per_sm(p, gpu)
    busy, most = min(blocks, gpu.sms), -(-blocks // gpu.sms)  # multiprocessors with work; blocks of the busiest
    # Bytes: through DRAM once, through L2 into every block; few blocks cannot ask for enough of them at a time.
    in_flight = min(most, per_sm) * (p.stages - 1) * t.stage_bytes
    results = tokens * s.width * 4 * (1 + len(p.epilogue.extras))
    dram = s.weight_rows * s.row_bytes + tokens * s.row_bytes + results
    from_dram = min(gpu.bandwidth * ASSUMED.bandwidth, busy * min(SM_MEMORY_BYTES, in_flight / ASSUMED.memory_latency))
    from_l2 = min(SM_L2_BYTES, in_flight / ASSUMED.l2_latency)
    load = max(dram / from_dram, most * block_steps * t.stage_bytes / from_l2)
    multiply = most * block_steps * 2 * t.out * t.tokens * STEP / (_sm_rate(gpu, s.dtype) * _fraction(p, gpu))
    join = JOIN + s.num_slices * t.out * t.tokens * 8 / SM_L2_BYTES if p.is_split else 0.0
    # A block's first loads and last stores overlap with others only where several live on a multiprocessor.
    rounds = -(-most // per_sm)
    return Cost(
        max(load, multiply) + START * (1 + 0.25 * (rounds - 1)) + join, load, multiply, blocks, per_sm * gpu.sms
    )


def _sm_rate(gpu: Gpu, dtype: DType) -> float:
    """Operations per second of one multiprocessor's tensor cores."""
    peak = gpu.peaks.bf16 if dtype is DType.BF16 else gpu.peaks.f16
    assert peak is not None, f"{gpu.name}: no peak for {dtype.value}"
    return peak / gpu.sms


def _fraction(p: LinearParams, gpu: Gpu) -> float:
    """Of the tensor cores' rate that shared memory lets the tile reach."""
    macs = _sm_rate(gpu, p.shape.dtype) / 2 / ASSUMED.clock  # a clock
    if isinstance(p, LinearWgmmaParams):
        clocks, read = 64 * p.tile.tokens * 16 / macs, (64 + p.tile.tokens) * 32 / SMEM_BYTES
        return clocks / max(clocks, read)
    assert isinstance(p, LinearMmaParams)
    clocks = p.tile.out * p.tile.tokens * 16 / macs
    read = (p.warps_tokens * p.tile.out + p.warps_out * p.tile.tokens) * 32 / SMEM_BYTES
    reachable = gpu.mma_sync if gpu.mma_sync is not None else ASSUMED.mma_sync
    return reachable * clocks / max(clocks, read)
