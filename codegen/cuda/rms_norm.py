"""rms_norm: one block per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from llmc.codegen.cuda.kernel import Budget, check
from llmc.codegen.cuda.target import CudaTarget


@dataclass(frozen=True)
class RmsNormParams:
    hidden: int
    threads: int
    add_residual: bool
    template: ClassVar[str] = "rms_norm"

    def __post_init__(self) -> None:
        check(self.hidden > 0 and self.hidden % 8 == 0, f"hidden {self.hidden} is not a positive multiple of 8")
        check(
            self.threads % 32 == 0 and 32 <= self.threads <= 1024,
            f"threads {self.threads}: whole warps up to 1024",
        )

    @property
    def label(self) -> str:
        return f"bf16_h{self.hidden}_t{self.threads}{'_add' if self.add_residual else ''}"

    @property
    def smem_bytes(self) -> int:
        return self.threads // 32 * 4

    @property
    def blocks_per_sm(self) -> int:
        return max(1, 512 // self.threads)

    def rejects(self, target: CudaTarget) -> str | None:
        return None

    def budget(self, target: CudaTarget) -> Budget:
        vectors = -(-self.hidden // 8 // self.threads)
        return Budget(
            32 + 12 * vectors,
            140 + 130 * vectors,
            {"LDG.E.128": vectors, "STG.E.128": vectors, "MUFU.RSQ": 1},
        )
