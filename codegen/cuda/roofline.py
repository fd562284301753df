"""How long a kernel is expected to take on a GPU: a small model over codegen/roofline.py's floors. All predicted.

    seconds = launches * gap + ramp + max(bytes / usable bandwidth, operations / usable rate, ...)

Each constant below says where it is from; docs/roofline.md discusses them. Kernels choose between candidates with
`linear_time` and `attention_time`, so that a choice and a prediction are of one mind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import pow

from llmc.codegen.cuda.gpus import Gpu
from llmc.codegen.packing import round_up
from llmc.codegen.roofline import Machine
from llmc.codegen.work import Step, Unit, Work, first_key, visible
from llmc.compiler.ir.dims import evaluate
from llmc.compiler.ir.graph import Node
from llmc.compiler.ir.ops.attention import Mask, PagedAttention
from llmc.compiler.ir.ops.kernel import PackedLinear, Sample
from llmc.compiler.ir.types import TensorType

DECODE_ROWS = 64  # most tokens of a step for which linears are cut along K over blocks
SPLIT_KEYS = 256  # keys of one block of decode attention
QUERY_TILE = 64  # queries of one block of prefill attention
SAMPLE_BLOCKS = 8  # blocks that share a row of logits


@dataclass(frozen=True)
class Assumptions:
    """What no data sheet says. Seconds, or fractions of what the data sheet says."""

    gap: float = 1.3e-6
    """Between the end of a kernel and the start of the next in a graph: measured on H100 by Spector et al. 2025
    ("Look Ma, No Bubbles", Hazy Research)."""
    gap_dependent: float = 0.7e-6
    """The same with programmatic dependent launch, which overlaps the launch but not the wait. Assumed: half."""
    ramp: float = 0.7e-6
    """From a kernel's first load to data at full rate, and from its last to the end of its stores. Assumed: about one
    latency of device memory (0.4 to 0.6 us on Ampere and Hopper) and the drain."""
    bandwidth: float = 0.90
    """Of the data sheet's bandwidth, for long streams. 3.02 of 3.35 TB/s is what copies reach on H100."""
    sm_share: float = 2.0
    """One SM draws at most this many times its share of the bandwidth, so half of them saturate it. Assumed."""
    matrix: float = 0.70
    """Of what a tensor-core instruction can reach, in the main loop of a linear with tiles of 128 x 128. Assumed
    (libraries reach 0.7 to 0.75 of the data sheet on H100, 0.85 on A100)."""
    small_tile: float = 0.25
    """A tile of fewer than 128 x 128 results loads more per product: its rate falls with this power of their number.
    Assumed."""
    attention: float = 0.50
    """The same for prefill attention, whose exponentials stand between its products. Assumed."""
    vector: float = 0.50
    """Of the vector units' rate, for code that is not all multiply-adds. Assumed."""
    mma_sync: float = 0.30
    """Of the tensor cores' peak that mma.sync reaches where no figure is known (sm_100a). Assumed."""
    memory: float = 0.94
    """Of the device's memory that an engine may fill: ECC, reserved pages and the context take the rest. Assumed."""


ASSUMED = Assumptions()


@dataclass(frozen=True)
class Estimate:
    """Expected seconds of a node, its launches and gaps among them, and how they come about."""

    seconds: float
    launches: int
    note: str


@dataclass(frozen=True)
class Tile:
    """One block's share of a linear: rows of the input, columns of the output, and how many blocks share K."""

    block_m: int
    block_n: int
    slices: int = 1
    wgmma: bool = False

    def rejects(self, gpu: Gpu) -> str | None:
        return f"{gpu.arch} has no wgmma" if self.wgmma and not gpu.has("wgmma") else None

    def blocks(self, m: int, n: int) -> int:
        return -(-m // self.block_m) * -(-n // self.block_n) * self.slices

    def __str__(self) -> str:
        cut = f" x {self.slices} slices" if self.slices > 1 else ""
        return f"{self.block_m}x{self.block_n}{cut} {'wgmma' if self.wgmma else 'mma.sync'}"


def machine(gpu: Gpu) -> Machine:
    return Machine(gpu.bandwidth, gpu.l2_bytes, gpu.peaks)


def fill(blocks: int, gpu: Gpu) -> float:
    """Mean fraction of the SMs at work, when equal blocks run in waves and the last wave is not full."""
    waves = -(-blocks // gpu.sms)
    return blocks / (waves * gpu.sms)


def memory_time(num_bytes: float, blocks: int, gpu: Gpu, assumed: Assumptions = ASSUMED) -> float:
    """Seconds to move bytes with this many equal blocks."""
    usable = min(assumed.bandwidth, assumed.sm_share * fill(blocks, gpu))
    return num_bytes / (gpu.bandwidth * usable)


def matrix_rate(unit: Unit, wgmma: bool, gpu: Gpu, assumed: Assumptions = ASSUMED) -> float | None:
    """Operations per second that an instruction can reach; None where the GPU has no such unit."""
    peak = gpu.peaks.of(unit)
    if peak is None or wgmma or unit is Unit.F32:
        return peak
    return peak * (assumed.mma_sync if gpu.mma_sync is None else gpu.mma_sync)


def linear_time(
    m: int, n: int, k: int, unit: Unit, num_bytes: int, tile: Tile, gpu: Gpu, assumed: Assumptions = ASSUMED
) -> float | None:
    """Seconds of the body of a linear [m, k] x [n, k] in these tiles; None where the GPU lacks the unit.

    Blocks that share K write their sums and one of them reads all: `slices` f32 [m, n] there and back.
    """
    rate = matrix_rate(unit, tile.wgmma, gpu, assumed)
    if rate is None:
        return None
    blocks = tile.blocks(m, n)
    sums = 2 * tile.slices * m * n * 4 if tile.slices > 1 else 0
    waves = -(-blocks // gpu.sms)
    efficiency = assumed.matrix * pow(min(1.0, tile.block_m * tile.block_n / 128**2), assumed.small_tile)
    block_flops = 2 * tile.block_m * tile.block_n * -(-k // tile.slices)
    products = waves * block_flops * gpu.sms / (rate * efficiency)
    return max(memory_time(num_bytes + sums, blocks, gpu, assumed), products)


def linear_tiles(m: int, n: int, k: int, gpu: Gpu) -> Iterator[Tile]:
    """Tiles worth comparing. K is cut for few rows only, until every SM has a block and no further than 256 columns."""
    if m <= DECODE_ROWS:
        for block_n in (32, 64):
            slices = 1
            while -(-n // block_n) * slices < gpu.sms and k // (2 * slices) >= 256:
                slices *= 2
            yield Tile(round_up(m, 8), block_n, slices)
    yield from (Tile(64, 64), Tile(128, 128), Tile(128, 128, wgmma=True), Tile(128, 256, wgmma=True))


def attention_time(
    op: PagedAttention, heads: int, work: Work, step: Step, gpu: Gpu, assumed: Assumptions = ASSUMED
) -> tuple[float, int] | None:
    """(seconds of the body of attention, its blocks); None where the GPU lacks the unit.

    Decode: a block per sequence, KV head and SPLIT_KEYS keys. Prefill: a block per QUERY_TILE queries of a head, which
    computes whole tiles of scores, those above the diagonal too.
    """
    rate = matrix_rate(work.matrix_unit, False, gpu, assumed)
    if rate is None:
        return None
    scores, keys = visible(op.mask, step.new, step.past)
    if step.new == 1:
        blocks = step.seqs * op.num_kv_heads * -(-keys // SPLIT_KEYS)
        waste = 1.0
    else:
        blocks = step.seqs * heads * -(-step.new // QUERY_TILE)
        waste = tiled_scores(op.mask, step) / scores
    busy = min(1.0, blocks / gpu.sms)
    products = work.matrix_flops * waste / (rate * assumed.attention * busy)
    softmax = vector_time(work.vector_flops * waste, busy, gpu, assumed)
    return max(memory_time(work.num_bytes, blocks, gpu, assumed), products, softmax), blocks


def tiled_scores(mask: Mask, step: Step) -> int:
    """Scores of one head and sequence when they are computed in square tiles of QUERY_TILE."""
    total = 0
    for start in range(step.past, step.past + step.new, QUERY_TILE):
        end = min(start + QUERY_TILE, step.past + step.new)
        first = first_key(mask, start) // QUERY_TILE * QUERY_TILE
        total += QUERY_TILE * round_up(end - first, QUERY_TILE)
    return total


def vector_time(operations: float, busy: float, gpu: Gpu, assumed: Assumptions = ASSUMED) -> float:
    """Seconds of pointwise work on this fraction of the SMs."""
    assert gpu.peaks.f32 is not None, f"{gpu.name}: no f32 rate"
    return operations / (gpu.peaks.f32 * assumed.vector * busy)


def estimate(node: Node, work: Work, step: Step, gpu: Gpu, assumed: Assumptions = ASSUMED) -> Estimate | None:
    """Expected seconds of a kernel-level node with this work; None where the GPU lacks its arithmetic."""
    launches = 1
    match node.op:
        case PackedLinear():
            found = _linear(node, work, step, gpu, assumed)
            if found is None:
                return None
            body, note = found
        case PagedAttention() as op:
            heads = int(str(node.inputs[1].tensor.shape[1]))
            timed = attention_time(op, heads, work, step, gpu, assumed)
            if timed is None:
                return None
            body, note = timed[0], plural(timed[1])
            launches += step.new == 1  # the splits' results are joined by a second kernel
        case _:
            rows = evaluate(node.outputs[0].tensor.shape[0], step.sizes) if _tensor(node) else step.tokens
            blocks = rows * (SAMPLE_BLOCKS if isinstance(node.op, Sample) else 1)
            busy = min(1.0, blocks / gpu.sms)
            moved = memory_time(work.num_bytes, blocks, gpu, assumed)
            body, note = max(moved, vector_time(work.vector_flops, busy, gpu, assumed)), plural(blocks)
    gap = assumed.gap_dependent if gpu.has("pdl") else assumed.gap
    return Estimate(launches * gap + assumed.ramp + body, launches, note)


def _linear(node: Node, work: Work, step: Step, gpu: Gpu, assumed: Assumptions) -> tuple[float, str] | None:
    """(seconds, note) of the fastest tile."""
    n, k = node.inputs[1].tensor.static_shape()
    m = evaluate(node.inputs[0].tensor.shape[0], step.sizes)
    best: tuple[float, str] | None = None
    for tile in linear_tiles(m, n, k, gpu):
        if tile.rejects(gpu) is not None:
            continue
        seconds = linear_time(m, n, k, work.matrix_unit, work.num_bytes, tile, gpu, assumed)
        if seconds is not None and (best is None or seconds < best[0]):
            blocks = tile.blocks(m, n)
            best = seconds, f"{tile}: {plural(blocks)}, SMs {fill(blocks, gpu):.0%} full"
    return best


def plural(blocks: int) -> str:
    return f"{blocks} block{'s' if blocks != 1 else ''}"


def _tensor(node: Node) -> bool:
    return isinstance(node.outputs[0].type, TensorType)
