"""Paged attention: decode (split KV, with its combine kernel) and prefill; the rotary embedding before
both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from llmc.codegen.cuda.kernel import Budget, check, rejects_smem
from llmc.codegen.cuda.target import CudaTarget


@dataclass(frozen=True)
class DecodeAttentionParams:
    """group: query heads per KV head; page and split in tokens."""

    head_dim: int
    group: int
    page: int
    split: int
    template: ClassVar[str] = "attention_decode"

    def __post_init__(self) -> None:
        check(self.head_dim in (64, 128), f"head_dim {self.head_dim} is not 64 or 128")
        check(1 <= self.group <= 8, f"group {self.group} is not in 1..8")
        check(
            self.page > 0 and self.split % self.page == 0,
            f"split {self.split} is not whole pages of {self.page}",
        )

    @property
    def threads(self) -> int:
        return 128

    @property
    def label(self) -> str:
        return f"bf16_d{self.head_dim}_g{self.group}_p{self.page}_s{self.split}"

    @property
    def smem_bytes(self) -> int:
        states = 4 * 256 // self.head_dim
        return states * self.group * (self.head_dim + 2) * 4

    @property
    def blocks_per_sm(self) -> int:
        return 4

    def rejects(self, target: CudaTarget) -> str | None:
        return rejects_smem(self, target)

    def budget(self, target: CudaTarget) -> Budget:
        return Budget(
            128,
            300 + 100 * self.group,
            {"LDG.E.128": 2, "SHFL.BFLY": 3 * self.group, "MUFU.EX2": 2 * self.group},
        )


@dataclass(frozen=True)
class PrefillAttentionParams:
    head_dim: int
    group: int
    page: int
    template: ClassVar[str] = "attention_prefill"

    def __post_init__(self) -> None:
        check(self.head_dim in (64, 128), f"head_dim {self.head_dim} is not 64 or 128")
        check(self.group >= 1 and self.page >= 1, "group and page are positive")

    @property
    def threads(self) -> int:
        return 128

    @property
    def label(self) -> str:
        return f"bf16_d{self.head_dim}_g{self.group}_p{self.page}"

    @property
    def smem_bytes(self) -> int:
        return 5 * 64 * self.head_dim * 2

    @property
    def blocks_per_sm(self) -> int:
        return 2

    def rejects(self, target: CudaTarget) -> str | None:
        return rejects_smem(self, target)

    def budget(self, target: CudaTarget) -> Budget:
        mma = 2 * (self.head_dim // 16) * 8
        return Budget(
            255,
            500 + 10 * mma,
            {"LDGSTS.E.BYPASS.128": 3 * self.head_dim // 16, "MUFU.EX2": 32},
            {"HMMA.16816.F32.BF16": mma, "LDSM.16.MT88.4": self.head_dim // 4},
        )


@dataclass(frozen=True)
class RopeAppendParams:
    head_dim: int
    page: int
    template: ClassVar[str] = "rope_append"

    def __post_init__(self) -> None:
        check(
            self.head_dim % 64 == 0 and self.head_dim <= 256,
            f"head_dim {self.head_dim} is not a multiple of 64 to 256",
        )
        check(self.page >= 1, "page is positive")

    @property
    def threads(self) -> int:
        return self.head_dim // 2

    @property
    def label(self) -> str:
        return f"bf16_d{self.head_dim}_p{self.page}"

    @property
    def smem_bytes(self) -> int:
        return 0

    @property
    def blocks_per_sm(self) -> int:
        return 1

    def rejects(self, target: CudaTarget) -> str | None:
        return None

    def budget(self, target: CudaTarget) -> Budget:
        return Budget(40, 150, {"STG.E.U16": 2})
