"""Parameters of the linear kernels: what is computed (LinearShape), by which blocks (LinearTile), with which matrix
instruction (the class). The sum behind each result depends on the shape alone."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from llmc.codegen.cuda.arguments import Input, KernelArgument, Output, Scratch, counts
from llmc.codegen.cuda.kernel import Budget, check, rejects_smem
from llmc.codegen.cuda.linear.epilogue import LinearEpilogue
from llmc.codegen.cuda.plan.formats import ROW_ALIGNMENT
from llmc.codegen.cuda.target.capabilities import CudaTarget
from llmc.ir.formats import Scheme
from llmc.ir.ops.kernel import GATE_RUN
from llmc.ir.types import DType
from llmc.runtime.cuda.plan import Box

STEP = 64  # columns of K in a stage of the ring
SWIZZLE = 128  # bytes: of both tensor maps
PARTIALS = Scratch("linear_partials")  # sums of slices on their way to the last block of a tile
COUNTERS = Scratch("linear_counters", zeroed=True)  # how many of a tile's blocks have come
_CPP = {DType.BF16: "bf16", DType.F16: "f16"}
COMPUTED = (Scheme.BF16, Scheme.F16)  # the schemes that there are kernels for


class CountedBy(enum.Enum):
    """Which of the step's counts says how many rows there are; the value names the enumerator of linear.cuh."""

    TOKENS = "kTokens"
    ROWS = "kRows"


class Slices(enum.Enum):
    """How one launch walks the slices of K. Both give the same bits."""

    PARALLEL = "parallel"  # a block each; the last one to finish adds the partial sums
    SEQUENTIAL = "sequential"  # one block, one after the other


@dataclass(frozen=True)
class LinearShape:
    """y[T, width] of x[T, k], both operands of `dtype`; k in slices of `slice_k` columns, the last may be shorter.

    A gated weight alternates 16 rows of gate and 16 of up, both padded to whole runs.
    """

    dtype: DType
    width: int
    k: int
    slice_k: int
    gated: bool = False

    def __post_init__(self) -> None:
        check(self.dtype in _CPP, f"dtype {self.dtype.value} is not bf16 or f16")
        check(self.width >= 1 and self.k >= 1, f"width {self.width} and k {self.k} are positive")
        check(self.slice_k >= STEP and self.slice_k % STEP == 0, f"slice_k {self.slice_k} is not a multiple of {STEP}")

    @property
    def weight_rows(self) -> int:
        return -(-self.width // GATE_RUN) * GATE_RUN * 2 if self.gated else self.width

    @property
    def num_slices(self) -> int:
        return -(-self.k // self.slice_k)

    @property
    def row_bytes(self) -> int:
        """From one row of x, and of w, to the next."""
        return -(-2 * self.k // ROW_ALIGNMENT) * ROW_ALIGNMENT


@dataclass(frozen=True)
class LinearTile:
    """A block computes `out` output channels (rows of the weight) of `tokens` tokens."""

    out: int
    tokens: int
    slices: Slices

    def __post_init__(self) -> None:
        check(self.out % 32 == 0 and self.out > 0, f"tile.out {self.out} is not a positive multiple of 32")
        check(self.tokens in (8, 16, 32, 64, 128, 256), f"tile.tokens {self.tokens} is not 8, 16, 32, 64, 128 or 256")

    @property
    def sums_bytes(self) -> int:
        """Of its f32 sums in shared memory, on their way to the epilogue."""
        return self.tokens * (self.out + 4) * 4

    @property
    def stage_bytes(self) -> int:
        """Of one step along K of both operands."""
        return (self.out + self.tokens) * STEP * 2


@dataclass(frozen=True)
class LinearParams(ABC):
    """What every linear kernel tells about its launch: LinearMmaParams or LinearWgmmaParams."""

    shape: LinearShape
    tile: LinearTile
    counted: CountedBy
    stages: int
    epilogue: LinearEpilogue
    template: ClassVar[str]

    def __post_init__(self) -> None:
        check(self.stages >= 2, f"stages {self.stages}: a ring needs 2")
        given, expected = (self.epilogue.width, self.epilogue.gated), (self.shape.width, self.shape.gated)
        check(given == expected, f"the epilogue's (width, gated) is {given}, the shape's {expected}")

    @property
    @abstractmethod
    def threads(self) -> int: ...

    @property
    @abstractmethod
    def smem_bytes(self) -> int: ...

    @property
    @abstractmethod
    def blocks_per_sm(self) -> int: ...

    @abstractmethod
    def rejects(self, target: CudaTarget) -> str | None: ...

    @abstractmethod
    def budget(self, target: CudaTarget) -> Budget: ...

    @property
    def is_split(self) -> bool:
        """Do several blocks share one tile?"""
        return self.tile.slices is Slices.PARALLEL and self.shape.num_slices > 1

    @property
    def adds_slices(self) -> bool:
        """Does one block keep a total beside the sums of a slice?"""
        return self.tile.slices is Slices.SEQUENTIAL and self.shape.num_slices > 1

    @property
    def num_slices(self) -> int:
        return self.shape.num_slices

    @property
    def row_bytes(self) -> int:
        return self.shape.row_bytes

    @property
    def out_tiles(self) -> int:
        return -(-self.shape.weight_rows // self.tile.out)

    def token_tiles(self, rows: int) -> int:
        return -(-rows // self.tile.tokens)

    def grid(self, rows: int) -> tuple[int, int, int]:
        """For a bucket of at most `rows` tokens or sampled rows."""
        return self.out_tiles, self.token_tiles(rows), self.shape.num_slices if self.is_split else 1

    def workspace_bytes(self, rows: int) -> int:
        if not self.is_split:
            return 0
        return self.out_tiles * self.token_tiles(rows) * self.shape.num_slices * self.tile.out * self.tile.tokens * 4

    def num_counters(self, rows: int) -> int:
        return self.out_tiles * self.token_tiles(rows) if self.is_split else 0

    @property
    def arguments(self) -> tuple[KernelArgument, ...]:
        """In the kernel's order."""
        s, out = self.shape, self.epilogue.out
        x, x_box = self._operand(None, self.tile.tokens)
        w, w_box = self._operand(s.weight_rows, self.tile.out)
        found = [
            KernelArgument("x", x, Input(0), f"{s.dtype.value}[T, {s.k}]", x_box),
            KernelArgument("w", w, Input(1), f"{s.dtype.value}[{s.weight_rows}, {s.k}]", w_box),
            counts("Counts[1]"),
            *(KernelArgument(m.name, m.cpp_type, Input(2 + i), m.type) for i, m in enumerate(self.epilogue.extras)),
            KernelArgument("out", out.cpp_type, Output(), out.type),
        ]
        if self.is_split:
            found += [
                KernelArgument("workspace", "float*", PARTIALS, "f32[tiles, slices, tile]"),
                KernelArgument("counters", "u32*", COUNTERS, "u32[tiles]"),
            ]
        return tuple(found)

    @abstractmethod
    def _operand(self, rows: int | None, tile_rows: int) -> tuple[str, Box | None]:
        """The C++ type of an operand of `rows` rows (None: the step's), and its box where it is a tensor map."""

    # What the binder writes.

    @property
    def cpp_shape(self) -> str:
        s, t = self.shape, self.tile
        parallel = "true" if t.slices is Slices.PARALLEL else "false"
        sizes = f"{s.weight_rows}, {s.k}, {s.slice_k}, {parallel}, {t.out}, {t.tokens}"
        return f"{_CPP[s.dtype]}, {sizes}, CountedBy::{self.counted.value}"

    @property
    def grid_text(self) -> str:
        return f"({self.out_tiles}, ceil(T/{self.tile.tokens}), {self.grid(1)[2]})"

    @property
    def workspace_text(self) -> str:
        return "workspace, counters" if self.is_split else "nullptr, nullptr"

    @property
    def label(self) -> str:
        s, t = self.shape, self.tile
        gated, rows = "_gated" * s.gated, "_rows" * (self.counted is CountedBy.ROWS)
        slices = f"_{t.slices.value}{s.num_slices}" if s.num_slices > 1 else ""
        return f"{s.dtype.value}_n{s.width}_k{s.k}{gated}_{t.out}x{t.tokens}{slices}{rows}"


@dataclass(frozen=True)
class LinearMmaParams(LinearParams):
    """mma.sync, every target: warps_out x warps_tokens warps over the tile."""

    warps_out: int
    warps_tokens: int
    template: ClassVar[str] = "linear_mma"

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.tile.tokens <= 128, f"tile.tokens {self.tile.tokens} is more than 128")
        check(
            self.warps_out >= 1 and self.tile.out % (16 * self.warps_out) == 0,
            f"{self.tile.out} output channels do not divide over {self.warps_out} warps of 16",
        )
        check(
            self.warps_tokens >= 1 and self.tile.tokens % (8 * self.warps_tokens) == 0,
            f"{self.tile.tokens} tokens do not divide over {self.warps_tokens} warps of 8",
        )
        each = self.tile.tokens // self.warps_tokens
        check(each == 8 or each % 16 == 0, f"{each} tokens of a warp are not 8 or a multiple of 16")

    @property
    def threads(self) -> int:
        return self.warps_out * self.warps_tokens * 32

    @property
    def smem_bytes(self) -> int:
        return max(self.stages * self.tile.stage_bytes, self.tile.sums_bytes) + 16

    @property
    def num_quads(self) -> int:
        """m16n8 tiles of a warp."""
        return self.tile.out // self.warps_out // 16 * (self.tile.tokens // self.warps_tokens // 8)

    @property
    def blocks_per_sm(self) -> int:
        accumulators = self.num_quads * 4 * (2 if self.adds_slices else 1)
        return max(1, min(65536 // (self.threads * (accumulators + 72)), 4))

    def _operand(self, rows: int | None, tile_rows: int) -> tuple[str, Box | None]:
        return f"const {_CPP[self.shape.dtype]}*", None

    def rejects(self, target: CudaTarget) -> str | None:
        feature = f"mma_{self.shape.dtype.value}"
        return f"{target.arch} has no {feature}" if not target.has(feature) else rejects_smem(self, target)

    def budget(self, target: CudaTarget) -> Budget:
        loads = -(-self.tile.out * 8 // self.threads) + -(-self.tile.tokens * 8 // self.threads)
        registers = min(255, 65536 // (self.threads * self.blocks_per_sm) // 8 * 8)
        mma = "HMMA.16816.F32.BF16" if self.shape.dtype is DType.BF16 else "HMMA.16816.F32"
        fragments = self.tile.out // self.warps_out // 16 * 4 + max(self.tile.tokens // self.warps_tokens // 4, 2)
        return Budget(
            registers,
            1500 + 60 * self.num_quads + 100 * loads,
            {mma: self.num_quads * 4, "LDGSTS.E.BYPASS.128": loads, "LDSM.16.M88.4": fragments},
        )


@dataclass(frozen=True)
class LinearWgmmaParams(LinearParams):
    """wgmma and TMA: tile.out / 64 consumer warpgroups and a producer warp."""

    template: ClassVar[str] = "linear_wgmma"

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.tile.out in (64, 128), f"tile.out {self.tile.out} is not 64 or 128")
        registers = self.tile.tokens // 2 * (2 if self.adds_slices else 1)
        check(
            registers <= 128,
            f"{registers} registers of sums and totals in a thread: at most 128 leave room for the rest",
        )

    @property
    def threads(self) -> int:
        return self.tile.out * 2 + 32

    @property
    def smem_bytes(self) -> int:
        return max(self.stages * self.tile.stage_bytes, self.tile.sums_bytes) + self.stages * 16 + 16

    @property
    def blocks_per_sm(self) -> int:
        return 2 if self.tile.tokens <= 32 else 1

    def _operand(self, rows: int | None, tile_rows: int) -> tuple[str, Box | None]:
        s = self.shape
        box = Box(s.dtype.value, rows, s.k, s.row_bytes, tile_rows, STEP, SWIZZLE)
        return "const __grid_constant__ TensorMap", box

    def rejects(self, target: CudaTarget) -> str | None:
        for feature in ("wgmma", "tma"):
            if not target.has(feature):
                return f"{target.arch} has no {feature}"
        return rejects_smem(self, target)

    def budget(self, target: CudaTarget) -> Budget:
        registers = 65536 // (self.threads * self.blocks_per_sm) // 8 * 8
        suffix = ".BF16" if self.shape.dtype is DType.BF16 else ""
        return Budget(
            min(registers, 255),
            1500 + 30 * self.tile.tokens,
            {f"HGMMA.64x{self.tile.tokens}x16.F32{suffix}": 4, "UTMALDG.2D": 2, "SYNCS": 6},
        )
