"""sample: the next token of each row of logits. One block per row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from llmc.codegen.cuda.arguments import Input, KernelArgument, Result, Scratch, StepArray, counts
from llmc.codegen.cuda.kernel import LOOP_LOADS, Budget, check, rejects_smem
from llmc.codegen.cuda.target.capabilities import CudaTarget
from llmc.runtime.artifact.manifest import MAX_LOGPROBS

MAX_VOCAB = 1 << 18
EDITED = Scratch("edited_logits")  # rows with penalties and biases, R of row_floats f32
_BINS_BYTES = 2 * 256 * 4


@dataclass(frozen=True)
class SampleParams:
    """valid: ids that have text, the only ones that are chosen; vocab: columns of the logits; listed: how many likely
    tokens find room in shared memory (the row is read again where there are more)."""

    valid: int
    vocab: int
    threads: int = 512
    listed: int = 4096
    template: ClassVar[str] = "sample"

    def __post_init__(self) -> None:
        check(
            1 <= self.valid <= self.vocab,
            f"valid {self.valid} of vocab {self.vocab}: at least one id, all of them columns",
        )
        check(self.valid <= MAX_VOCAB, f"valid {self.valid} ids: sums of their weights fit 64 bits up to {MAX_VOCAB}")
        check(self.threads % 32 == 0 and 32 <= self.threads <= 1024, f"threads {self.threads}: whole warps up to 1024")
        check(
            self.listed % 4 == 0 and self.listed >= self.threads,
            f"listed {self.listed} is not a multiple of 4, or less than one per thread ({self.threads})",
        )

    @property
    def row_floats(self) -> int:
        """Floats from one row of logits to the next (formats.row_bytes of f32[R, vocab])."""
        return -(-self.vocab // 4) * 4

    @property
    def arguments(self) -> tuple[KernelArgument, ...]:
        rows, top = f"f32[R,{self.row_floats}]", f"[R,{MAX_LOGPROBS}]"
        return (
            KernelArgument("sampling", "const SampleRow*", StepArray("sampling"), "SampleRow[R]"),
            KernelArgument("logits", "const float*", Input(0), rows),
            counts("Counts[1]"),
            KernelArgument("history", "const int*", StepArray("history"), "i32[any]"),
            KernelArgument("bias_ids", "const int*", StepArray("bias_ids"), "i32[any]"),
            KernelArgument("bias", "const float*", StepArray("bias"), "f32[any]"),
            KernelArgument("edited", "float*", EDITED, f"{rows} scratch"),
            KernelArgument("tokens", "int*", Result("tokens"), "i32[R]"),
            KernelArgument("logprob", "float*", Result("logprob"), "f32[R]"),
            KernelArgument("top_ids", "int*", Result("top_ids"), f"i32{top}"),
            KernelArgument("top_logprobs", "float*", Result("top_logprobs"), f"f32{top}"),
        )

    @property
    def label(self) -> str:
        return f"v{self.valid}_t{self.threads}"

    @property
    def smem_bytes(self) -> int:
        """sizeof(Sampler::Shared), which the binder asserts."""
        warps, blocks = self.threads // 32, -(-self.valid // 256)
        selection = 8 * warps + 8 + _BINS_BYTES + 8 + 12 * self.listed
        rest = 12 * warps + 8 * blocks + 8 * MAX_LOGPROBS + 4
        return 16 + -(-selection // 8) * 8 + -(-12 * warps // 8) * 8 + -(-rest // 8) * 8

    @property
    def blocks_per_sm(self) -> int:
        return max(1, 512 // self.threads)

    @property
    def loads_in_flight(self) -> int:
        return LOOP_LOADS

    @property
    def scratch(self) -> Mapping[Scratch, int]:
        return {EDITED: 4 * self.row_floats}

    def rejects(self, target: CudaTarget) -> str | None:
        return rejects_smem(self, target)

    def budget(self, target: CudaTarget) -> Budget:
        return Budget(104, 6500, {"LDG.E.128": 16, "ATOMS.ADD": 10, "SHFL.BFLY": 60})
