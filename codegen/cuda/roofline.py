"""How long a kernel is expected to take on a GPU: a small model over codegen/roofline.py's floors. All predicted.

    seconds = launches * gap + ramp + max(bytes / usable bandwidth, operations / usable rate, ...)

Each constant below says where it is from; docs/roofline.md discusses them. Linears are as their choice between
candidates sees them (codegen/cuda/linear_cost.py), so that a choice and a prediction are of one mind.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from llmc.codegen.cuda.gpus import Gpu
from llmc.codegen.cuda.linear import Variant, variants
from llmc.codegen.cuda.linear_cost import UNKNOWN_MMA_SYNC, cost
from llmc.codegen.packing import round_up
from llmc.codegen.roofline import Machine
from llmc.codegen.work import Step, Unit, Work, first_key, visible
from llmc.compiler.ir.dims import evaluate
from llmc.compiler.ir.graph import IRError, Node
from llmc.compiler.ir.ops.attention import Mask, PagedAttention
from llmc.compiler.ir.ops.kernel import PackedLinear
from llmc.compiler.ir.types import TensorType

SPLIT_KEYS = 128  # keys of one block of decode attention
QUERY_TILE = 64  # queries of one block of prefill attention


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
    """Of what a tensor-core instruction and the tile's loads from shared memory allow, in the main loop of a linear.
    Assumed (libraries reach 0.7 to 0.75 of the data sheet on H100, 0.85 on A100)."""
    attention: float = 0.50
    """The same for prefill attention, whose exponentials stand between its products. Assumed."""
    vector: float = 0.50
    """Of the vector units' rate, for code that is not all multiply-adds. Assumed."""
    mma_sync: float = UNKNOWN_MMA_SYNC
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


def matrix_rate(unit: Unit, gpu: Gpu, assumed: Assumptions = ASSUMED) -> float | None:
    """Operations per second that mma.sync can reach; None where the GPU has no such unit."""
    peak = gpu.peaks.of(unit)
    if peak is None or unit is Unit.F32:
        return peak
    return peak * (assumed.mma_sync if gpu.mma_sync is None else gpu.mma_sync)


def attention_time(
    op: PagedAttention, heads: int, work: Work, step: Step, gpu: Gpu, assumed: Assumptions = ASSUMED
) -> tuple[float, int] | None:
    """(seconds of the body of attention, its blocks); None where the GPU lacks the unit.

    Decode: a block per sequence, KV head and SPLIT_KEYS keys. Prefill: a block per QUERY_TILE queries of a head, which
    computes whole tiles of scores, those above the diagonal too.
    """
    rate = matrix_rate(work.matrix_unit, gpu, assumed)
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
        case PackedLinear() as op:
            return _linear(node, op, step, gpu, assumed)
        case PagedAttention() as op:
            heads = int(str(node.inputs[1].tensor.shape[1]))
            timed = attention_time(op, heads, work, step, gpu, assumed)
            if timed is None:
                return None
            body, note = timed[0], plural(timed[1])
            launches += step.new == 1  # the splits' results are joined by a second kernel
        case _:
            rows = evaluate(node.outputs[0].tensor.shape[0], step.sizes) if _tensor(node) else step.tokens
            busy = min(1.0, rows / gpu.sms)  # a block for each row
            moved = memory_time(work.num_bytes, rows, gpu, assumed)
            body, note = max(moved, vector_time(work.vector_flops, busy, gpu, assumed)), plural(rows)
    return Estimate(launches * _gap(gpu, assumed) + assumed.ramp + body, launches, note)


def _linear(node: Node, op: PackedLinear, step: Step, gpu: Gpu, assumed: Assumptions) -> Estimate | None:
    """Of the kernel that a build takes for this many rows, by the cost that it was chosen by (codegen/cuda/linear.py,
    linear_cost.py); but matrix units reach less than their peak there, too. None for schemes without CUDA kernels."""
    k = evaluate(node.inputs[1].tensor.shape[1], {})
    m, n = (evaluate(d, step.sizes) for d in node.output.tensor.shape)
    try:
        found = _variants(op, n, k, gpu)
    except IRError:
        return None
    params = next(v.params for v in found if v.up_to is None or m <= v.up_to)
    at = cost(params, m, gpu)
    streams = max(at.load, at.multiply)
    seconds = at.seconds - streams + max(at.load, at.multiply / assumed.matrix)
    tile = params.tile
    cut = f", K in {params.shape.num_slices} slices, {tile.slices.value}" if params.shape.num_slices > 1 else ""
    note = f"{tile.out}x{tile.tokens} {params.template.removeprefix('linear_')}{cut}: {plural(at.blocks)}"
    return Estimate(_gap(gpu, assumed) + seconds, 1, note)


@cache
def _variants(op: PackedLinear, n: int, k: int, gpu: Gpu) -> list[Variant]:
    return variants(op, n, k, gpu)


def _gap(gpu: Gpu, assumed: Assumptions) -> float:
    return assumed.gap_dependent if gpu.has("pdl") else assumed.gap


def plural(blocks: int) -> str:
    return f"{blocks} block{'s' if blocks != 1 else ''}"


def _tensor(node: Node) -> bool:
    return isinstance(node.outputs[0].type, TensorType)
