"""The rotary embedding of q and k, and the append of k and v to the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from llmc.codegen.cuda.kernel import Budget, check
from llmc.codegen.cuda.target import CudaTarget


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
