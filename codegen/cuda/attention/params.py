"""Paged attention's kernels: `prefill` for any mix of tokens, `decode` with `combine` for sequences of one token.

All give a query row the same bits, so a step may send any sequence to either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from llmc.codegen.cuda.arguments import KernelArgument
from llmc.codegen.cuda.attention.layer import HALVES, WARPS, Layer, arguments, cpp_type
from llmc.codegen.cuda.kernel import Budget, check, rejects_smem
from llmc.codegen.cuda.target.capabilities import CudaTarget
from llmc.ir.types import DType
from llmc.runtime.cuda.plan import Extent, Factor

PREFILL_ROWS = 64  # query rows of a block
UNROLLED = 8  # MMA steps along a head in straight-line code; longer heads loop
_INPUTS = "q kv block_bytes slot_offset counts tables positions"


@dataclass(frozen=True)
class PrefillAttentionParams:
    """`result`: what rows are written in. Sequences of fewer than `min_tokens` (1 or 2) in the step are passed over."""

    layer: Layer
    result: DType
    min_tokens: int = 1
    template: ClassVar[str] = "attention_prefill"

    def __post_init__(self) -> None:
        _check_result(self.result)
        check(self.min_tokens in (1, 2), f"min_tokens {self.min_tokens} is not 1 or 2: decode takes single tokens only")

    @property
    def label(self) -> str:
        return f"{self.layer.label}_{self.result.value}" + ("_chunks" if self.min_tokens == 2 else "")

    @property
    def threads(self) -> int:
        return WARPS * 32

    @property
    def smem_bytes(self) -> int:
        """Queries, keys, and this part of the values."""
        slot, split = self.layer.slot, self.layer.split
        return (PREFILL_ROWS + split) * slot.padded_head_dim * 2 + split * self.part_steps * 32

    @property
    def parts(self) -> int:
        """Blocks that share a row's value columns: the registers of one hold 128."""
        return -(-self.layer.value_dim // 128)

    @property
    def part_steps(self) -> int:
        return -(-self.layer.value_steps // self.parts)

    @property
    def blocks_per_sm(self) -> int:
        return 2  # scores and values of 16 rows want more registers than three blocks would leave

    @property
    def result_cpp(self) -> str:
        return cpp_type(self.result)

    @property
    def arguments(self) -> tuple[KernelArgument, ...]:
        return arguments(self.layer, f"{_INPUTS} seqs seq_starts sinks slopes out base2 cap", self.result)

    @property
    def grid(self) -> tuple[Extent, ...]:
        """At least as many blocks as tiles of rows: tokens of a tile are rounded down."""
        group = self.layer.group
        tiles = Extent(-(-group // PREFILL_ROWS), (Factor("T", max(1, PREFILL_ROWS // group)),))
        return tiles, Extent(self.layer.kv_heads), Extent(self.parts)

    @property
    def grid_text(self) -> str:
        return _grid_text(self.grid)

    def rejects(self, target: CudaTarget) -> str | None:
        return rejects_smem(self, target)

    def budget(self, target: CudaTarget) -> Budget:
        a = self.layer
        steps = min(a.key_steps, UNROLLED)
        mma = a.split // 8 * (steps + self.part_steps)
        loads = a.split // 16 * (steps + self.part_steps)
        name = f"HMMA.16816.F32{'.BF16' if a.dtype is DType.BF16 else ''}"
        return Budget(
            255,
            1000 + 6 * mma + a.split * (12 + 4 * (a.softcap + a.alibi)),
            {
                "LDGSTS.E.BYPASS.128": (a.key_steps + self.part_steps) // 2,
                "MUFU.EX2": a.split // 2,
                "LDSM.16": loads,
                name: mma,
            },
            {name: mma} if a.key_steps <= UNROLLED else {},
        )


@dataclass(frozen=True)
class DecodeAttentionParams:
    layer: Layer
    template: ClassVar[str] = "attention_decode"

    @property
    def label(self) -> str:
        return self.layer.label

    @property
    def threads(self) -> int:
        return WARPS * 32

    @property
    def row_tiles(self) -> int:
        return -(-self.layer.group // 16)

    @property
    def smem_bytes(self) -> int:
        """Queries, keys and values; weights of 16 rows; maxima and sums that warps exchange."""
        queries = self.row_tiles * 16 * self.layer.slot.padded_head_dim * 2
        return queries + self.layer.tile_bytes + self.layer.split * 32 + WARPS * 16 * 4 + WARPS * 32 * 8

    @property
    def blocks_per_sm(self) -> int:
        """As many as the largest shared memory holds."""
        return max(1, min(4, (228 << 10) // (self.smem_bytes + 1024)))

    @property
    def arguments(self) -> tuple[KernelArgument, ...]:
        return arguments(self.layer, f"{_INPUTS} seq_starts slopes scratch max_splits base2 cap")

    @property
    def grid(self) -> tuple[Extent, ...]:
        return Extent(1, (Factor("S", 1),)), Extent(self.layer.kv_heads), self.layer.seen_splits

    @property
    def grid_text(self) -> str:
        return _grid_text(self.grid)

    def rejects(self, target: CudaTarget) -> str | None:
        return rejects_smem(self, target)

    def budget(self, target: CudaTarget) -> Budget:
        a = self.layer
        steps = min(a.key_steps, UNROLLED)
        mma = self.row_tiles * (a.split // 4 // 8 * steps + a.split // 8)
        return Budget(
            min(255, 65536 // (self.threads * self.blocks_per_sm) // 8 * 8),
            1000 + 8 * mma + 400 * (self.row_tiles - 1),
            {"LDGSTS.E.BYPASS.128": (a.key_steps + a.value_steps) // 2, "LDSM.16": steps, "HMMA.16816.F32": mma},
        )


@dataclass(frozen=True)
class CombineAttentionParams:
    layer: Layer
    result: DType
    template: ClassVar[str] = "attention_combine"

    def __post_init__(self) -> None:
        _check_result(self.result)

    @property
    def label(self) -> str:
        return f"{self.layer.label}_{self.result.value}"

    @property
    def threads(self) -> int:
        return -(-self.layer.value_dim // 32) * 32

    @property
    def smem_bytes(self) -> int:
        return 0

    @property
    def blocks_per_sm(self) -> int:
        return min(16, 1536 // self.threads)

    @property
    def result_cpp(self) -> str:
        return cpp_type(self.result)

    @property
    def arguments(self) -> tuple[KernelArgument, ...]:
        return arguments(self.layer, "counts positions seq_starts sinks scratch max_splits out base2", self.result)

    @property
    def grid(self) -> tuple[Extent, ...]:
        return Extent(1, (Factor("S", 1),)), Extent(self.layer.q_heads)

    @property
    def grid_text(self) -> str:
        return _grid_text(self.grid)

    def rejects(self, target: CudaTarget) -> str | None:
        return None

    def budget(self, target: CudaTarget) -> Budget:
        return Budget(65536 // (self.threads * self.blocks_per_sm) // 8 * 8, 500, {"MUFU.EX2": 2, "MUFU.RCP": 1})


AttentionParams = PrefillAttentionParams | DecodeAttentionParams | CombineAttentionParams


def _check_result(result: DType) -> None:
    check(result in (DType.F32, *HALVES), f"attention results in {result.value}: f32, bf16 or f16")


def _grid_text(grid: tuple[Extent, ...]) -> str:
    def one(extent: Extent) -> str:
        factors = [f.symbol if f.per == 1 else f"ceil({f.symbol}/{f.per})" for f in extent.factors]
        return "*".join([str(extent.times)] * (extent.times > 1 or not factors) + factors)

    return ", ".join(map(one, grid))
