"""Which kernels compute a linear: how K is cut, and for each bucket of token counts the tile that a model of its cost
finds fastest, with the reasons. The cut and the matrix instruction are chosen from N, K and the target alone, before
and apart from the tiles: all variants of a linear give the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llmc.codegen.cuda.linear.cost import cost
from llmc.codegen.cuda.linear.epilogue import LinearEpilogue, Member, write_epilogue
from llmc.codegen.cuda.linear.params import (
    COMPUTED,
    STEP,
    CountedBy,
    LinearMmaParams,
    LinearParams,
    LinearShape,
    LinearTile,
    LinearWgmmaParams,
    Slices,
)
from llmc.codegen.cuda.target.gpus import Gpu
from llmc.ir.graph import IRError
from llmc.ir.ops.kernel import GATE_RUN, PackedLinear
from llmc.ir.types import DType

BUCKETS = (8, 16, 32, 64, 128, 256, None)  # most tokens; None: any number
MANY_TOKENS = 2048  # what the last bucket is tuned for
MIN_SLICE = 256  # columns: shorter slices cost more partial sums than they spread work
MAX_SLICES = 16
WORTH_A_SLICE = 0.95  # more slices must be this much faster: long prompts keep totals for them
MAX_STAGES = 12
# Warps over a tile of mma.sync, by its output channels and tokens: parts as square as its sides allow.
_WARPS = {
    (64, 8): (4, 1),
    (64, 16): (4, 1),
    (64, 32): (4, 1),
    (64, 64): (2, 2),
    (64, 128): (2, 4),
    (128, 8): (8, 1),
    (128, 16): (8, 1),
    (128, 32): (4, 1),
    (128, 64): (4, 2),
    (128, 128): (2, 4),
}


@dataclass(frozen=True)
class LinearVariant:
    """The kernel for launches of at most `up_to` rows (None: any number), why it, and why not each of the others, best
    first."""

    up_to: int | None
    params: LinearParams
    why: str
    rejected: Mapping[str, str]


def variants(
    op: PackedLinear, n: int, k: int, target: Gpu, counted: CountedBy = CountedBy.TOKENS
) -> list[LinearVariant]:
    """For a linear with n output columns (a gated one computes 2 n sums), one variant for each bucket, smallest first;
    neighbouring buckets with the same kernel are one. IRError for schemes and epilogues that no CUDA kernel has."""
    if op.scheme not in COMPUTED:
        raise IRError(f"a linear of scheme {op.scheme}: CUDA kernels compute {' and '.join(map(str, COMPUTED))}")
    epilogue = write_epilogue(op)
    if epilogue.width != n:
        raise IRError(f"a linear with {n} columns has an epilogue of {epilogue.width}")
    slice_k = choose_slice(n, k, op.gated, target)
    shape = LinearShape(op.scheme.operand.element, n, k, slice_k, op.gated)
    found: list[LinearVariant] = []
    for up_to in BUCKETS:
        variant = _best(shape, epilogue, counted, up_to, target)
        if found and found[-1].params == variant.params:
            found.pop()
        found.append(variant)
    return found


def choose_slice(n: int, k: int, gated: bool, target: Gpu) -> int:
    """Columns of K in a slice: what reads the weight of one token's linear fastest."""
    rows = -(-n // GATE_RUN) * GATE_RUN * 2 if gated else n
    steps = -(-k // STEP)
    best: tuple[float, int] | None = None
    for slices in range(1, MAX_SLICES + 1):
        slice_k = -(-steps // slices) * STEP
        if slices > 1 and (slice_k < MIN_SLICE or -(-k // slice_k) != slices):
            continue
        shape = LinearShape(DType.BF16, rows, k, slice_k)
        candidates = _usable(
            shape,
            LinearEpilogue("", (), Member("out", "float*", ""), rows, False),
            CountedBy.TOKENS,
            BUCKETS[0],
            target,
        )
        seconds = min(cost(p, 1, target).seconds for p in candidates)
        if best is None or seconds < best[0] * WORTH_A_SLICE:
            best = seconds, slice_k
    assert best is not None
    return best[1]


def _best(
    shape: LinearShape, epilogue: LinearEpilogue, counted: CountedBy, up_to: int | None, target: Gpu
) -> LinearVariant:
    tokens = up_to or MANY_TOKENS
    ranked = sorted(
        ((cost(p, tokens, target), p) for p in _usable(shape, epilogue, counted, up_to, target)),
        key=lambda c: (round(c[0].seconds * 1e8), c[0].blocks, -c[1].stages),  # among equals the larger block
    )
    chosen, params = ranked[0]
    rejected = {tile_name(p): str(c) for c, p in ranked[1:]}
    for p in candidates(shape, epilogue, counted, up_to, target):
        if (reason := p.rejects(target)) is not None:
            rejected[tile_name(p)] = reason
    return LinearVariant(up_to, params, str(chosen), rejected)


def tile_name(p: LinearParams) -> str:
    """`64x8 x12`: channels by tokens of a block, and stages of its ring."""
    slices = f" {p.tile.slices.value}" if p.shape.num_slices > 1 else ""
    return f"{p.tile.out}x{p.tile.tokens}{slices} x{p.stages}"


def _usable(
    shape: LinearShape, epilogue: LinearEpilogue, counted: CountedBy, up_to: int | None, target: Gpu
) -> list[LinearParams]:
    found = [p for p in candidates(shape, epilogue, counted, up_to, target) if p.rejects(target) is None]
    assert found, f"no linear kernel for {shape} on {target.name}"
    return found


def candidates(
    shape: LinearShape, epilogue: LinearEpilogue, counted: CountedBy, up_to: int | None, target: Gpu
) -> Iterator[LinearParams]:
    """Every tile for a bucket, with the ring as deep as shared memory allows for one and for two blocks at a time."""
    wgmma = target.has("wgmma")
    ways = [Slices.SEQUENTIAL]
    if shape.num_slices > 1 and up_to is not None:  # a workspace for any number of tokens has no size
        ways.append(Slices.PARALLEL)
    most = max(up_to or 256, 8)
    for out in (64, 128):
        for tokens in (8, 16, 32, 64, 128, 256) if wgmma else (8, 16, 32, 64, 128):
            if tokens > most or tokens * 8 < most:
                continue
            for slices in ways:
                tile = LinearTile(out, tokens, slices)
                totals = slices is Slices.SEQUENTIAL and shape.num_slices > 1
                if wgmma and tokens * (2 if totals else 1) > 256:
                    continue  # LinearWgmmaParams: registers
                for stages in _depths(tile, target):
                    if wgmma:
                        yield LinearWgmmaParams(shape, tile, counted, stages, epilogue)
                    else:
                        yield LinearMmaParams(shape, tile, counted, stages, epilogue, *_WARPS[out, tokens])


def _depths(tile: LinearTile, target: Gpu) -> list[int]:
    found = []
    for blocks in (1, 2):
        room = min(target.smem_optin, target.smem_sm // blocks - 1024) - 512  # barriers and the like
        found.append(max(2, min(room // tile.stage_bytes, MAX_STAGES)))
    return sorted(set(found))
