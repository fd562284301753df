"""What a build does for each kind of target: which layout the passes lower to, and the target's part of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from llmc.codegen.cpu.linear_kernels import Choice, choose_linear
from llmc.codegen.cpu.model import BLOCK_TOKENS, render
from llmc.codegen.cpu.target import CpuTarget, TargetError, cpu_names
from llmc.codegen.package import TargetPart, cpu_part
from llmc.codegen.toolchain import Toolchain, compile_library, find_toolchain
from llmc.codegen.weights import PlacedWeight
from llmc.compiler.ir.graph import Graph
from llmc.compiler.ir.ops.constant import WeightExpr
from llmc.compiler.ir.ops.kernel import Sample, Scheme, WeightLayout
from llmc.compiler.report import launches_of
from llmc.compiler.targets import Target


@dataclass(frozen=True)
class Lowered:
    """What a backend generates code from: the final graphs of all entries, and where their weights lie."""

    model: str
    entries: Sequence[Graph]
    weights: Mapping[WeightExpr, PlacedWeight]

    @property
    def num_valid_tokens(self) -> int:
        (sample,) = (n.op for n in self.entries[0].nodes if isinstance(n.op, Sample))
        return sample.num_valid_tokens

    @property
    def placed(self) -> list[PlacedWeight]:
        return list(self.weights.values())


class Backend(Protocol):
    """A target of a build."""

    @property
    def layout(self) -> WeightLayout:
        """How its kernels read the matrices of linears."""

    @property
    def toolchain(self) -> str:
        """What compiles its kernels, for the manifest."""

    def part(self, lowered: Lowered, stage: Callable[[str], None]) -> tuple[TargetPart, dict[str, Any]]:
        """Its part of the engine, and of the report. `stage` is told when kernels are compiled. Raises IRError."""


class CpuBackend:
    """model.so, by a C++ compiler. Raises ToolchainError where there is none, IRError for a scheme CPUs lack."""

    layout = WeightLayout.PANELS

    def __init__(self, target: CpuTarget, scheme: Scheme) -> None:
        self.target = target
        self.linear: Choice = choose_linear(scheme, target)
        self._compiler: Toolchain = find_toolchain()
        self.toolchain = self._compiler.name

    def part(self, lowered: Lowered, stage: Callable[[str], None]) -> tuple[TargetPart, dict[str, Any]]:
        target = self.target
        model = render(lowered.model, target.name, list(lowered.entries), lowered.weights, lowered.num_valid_tokens)

        def compile_model(texts: Mapping[str, str], out: Path) -> None:
            stage(f"compiling kernels for {target.name}")
            compile_library(texts, target, out, self._compiler)

        part = cpu_part(
            target.name, target.arch, target.features, model, lowered.placed, lowered.entries, compile_model
        )
        report = {
            "kernels": [
                {
                    "op": "packed_linear",
                    "chosen": self.linear.chosen.name,
                    "reason": f"{self.linear.chosen.macs_per_cycle} multiply-adds a cycle and core, at peak",
                    "rejected": self.linear.rejected,
                }
            ],
            "entries": {g.name: launches_of(g) for g in lowered.entries},
            "bytes": {
                "weights": sum(w.num_bytes for w in lowered.placed),
                "kv_per_token": model.kv_block_bytes // BLOCK_TOKENS,
                "arena_per_token": model.arena_per_token,
                "arena_per_row": model.arena_per_row,
            },
        }
        return part, report


def backend_of(target: Target, scheme: Scheme) -> Backend:
    """Raises ToolchainError or IRError where the target's kernels cannot be made here."""
    if not isinstance(target, CpuTarget):
        raise TargetError(f"no CUDA engines yet, so not for {target.name!r}: build for one of {', '.join(cpu_names())}")
    return CpuBackend(target, scheme)
