"""The portable GEMM (cp.async, ldmatrix, mma.sync), the Hopper GEMM (TMA, wgmma) and the skinny GEMM of
decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from llmc.codegen.cuda.kernel import Budget, Epilogue, check, rejects_smem
from llmc.codegen.cuda.target import CudaTarget


@dataclass(frozen=True)
class GemmParams:
    """Tile block_m x block_n x 64 over warps_m x warps_n warps, `stages` tiles in flight."""

    block_m: int
    block_n: int
    warps_m: int
    warps_n: int
    stages: int
    epilogue: Epilogue
    template: ClassVar[str] = "gemm"

    def __post_init__(self) -> None:
        for extent, warps in ((self.block_m, self.warps_m), (self.block_n, self.warps_n)):
            check(
                warps > 0 and extent % (16 * warps) == 0,
                f"{extent} rows do not divide over {warps} warps of 16",
            )
            check(
                extent * 8 % self.threads == 0,
                f"{extent} rows of 8 chunks do not divide over {self.threads} threads",
            )
        check(self.stages >= 2, f"stages {self.stages}: a pipeline needs 2")

    @property
    def threads(self) -> int:
        return self.warps_m * self.warps_n * 32

    @property
    def label(self) -> str:
        return f"bf16_{self.block_m}x{self.block_n}_s{self.stages}_{self.epilogue.value}"

    @property
    def smem_bytes(self) -> int:
        return self.stages * (self.block_m + self.block_n) * 128

    @property
    def blocks_per_sm(self) -> int:
        return 1 if self.block_m * self.block_n >= 128 * 128 else 2

    def rejects(self, target: CudaTarget) -> str | None:
        return rejects_smem(self, target)

    def budget(self, target: CudaTarget) -> Budget:
        wm, wn = self.block_m // self.warps_m, self.block_n // self.warps_n
        mma = wm // 16 * (wn // 8) * 4
        loads = (self.block_m + self.block_n) * 8 // self.threads
        registers = min(255, 65536 // (self.threads * self.blocks_per_sm) // 8 * 8)
        return Budget(
            registers,
            300 + 14 * mma + 60 * loads,
            {"LDGSTS.E.BYPASS.128": loads},
            {"HMMA.16816.F32.BF16": mma, "LDSM.16.M88.4": (wm + wn) // 16 * 4},
        )


@dataclass(frozen=True)
class HopperGemmParams:
    """Tile 128 x block_n x 64, `stages` of it in a ring."""

    block_n: int
    stages: int
    epilogue: Epilogue
    template: ClassVar[str] = "gemm_hopper"

    def __post_init__(self) -> None:
        check(self.block_n in (64, 128, 192, 256), f"block_n {self.block_n} is not 64, 128, 192 or 256")
        check(self.stages >= 2, f"stages {self.stages}: a ring needs 2")

    @property
    def threads(self) -> int:
        return 384

    @property
    def label(self) -> str:
        return f"bf16_128x{self.block_n}_s{self.stages}_{self.epilogue.value}"

    @property
    def smem_bytes(self) -> int:
        return self.stages * ((128 + self.block_n) * 128 + 16)

    @property
    def blocks_per_sm(self) -> int:
        return 1

    def rejects(self, target: CudaTarget) -> str | None:
        for feature in ("wgmma", "tma", "setmaxnreg"):
            if not target.has(feature):
                return f"{target.arch} has no {feature}"
        return rejects_smem(self, target)

    def budget(self, target: CudaTarget) -> Budget:
        return Budget(
            168,
            400 + 10 * self.block_n,
            {f"HGMMA.64x{self.block_n}x16.F32.BF16": 4, "UTMALDG.2D": 2, "SYNCS": 6, "USETMAXREG": 2},
        )


@dataclass(frozen=True)
class SkinnyGemmParams:
    """Up to max_m rows; K in `splits` slices, added in order."""

    max_m: int
    splits: int
    epilogue: Epilogue
    template: ClassVar[str] = "skinny_gemm"

    def __post_init__(self) -> None:
        check(1 <= self.max_m <= 16, f"max_m {self.max_m} is not in 1..16")
        check(1 <= self.splits <= 64, f"splits {self.splits} is not in 1..64")

    @property
    def threads(self) -> int:
        return 256

    @property
    def label(self) -> str:
        return f"bf16_m{self.max_m}_k{self.splits}_{self.epilogue.value}"

    @property
    def smem_bytes(self) -> int:
        return self.max_m * 32 * 4 + 16

    @property
    def blocks_per_sm(self) -> int:
        return 4 if self.max_m <= 4 else 2

    def rejects(self, target: CudaTarget) -> str | None:
        return None

    def budget(self, target: CudaTarget) -> Budget:
        return Budget(
            64 if self.max_m <= 4 else 128,
            300 + 260 * self.max_m,
            {"LDG.E.128": 5},
            {"SHFL.BFLY": 6 * self.max_m},
        )
