"""What a build does for each kind of target: which layout the passes lower to, and the target's part of the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from llmc.codegen.cpu.linear_kernels import Choice, choose_linear
from llmc.codegen.cpu.model import render
from llmc.codegen.cpu.target import CpuTarget
from llmc.codegen.cpu.toolchain import Toolchain, ToolchainError, compile_library, find_toolchain
from llmc.codegen.cuda import model as cuda_model
from llmc.codegen.cuda.target import nvrtc
from llmc.codegen.cuda.target.gpus import Gpu
from llmc.codegen.package import TargetPart, cpu_part, cuda_part
from llmc.codegen.weights import PlacedWeight
from llmc.compiler.report import launches_of
from llmc.compiler.targets import Target
from llmc.ir.formats import SCHEMES, Scheme, WeightLayout
from llmc.ir.graph import Graph, IRError
from llmc.ir.ops.constant import WeightExpr
from llmc.ir.ops.kernel import PackedLinear, Sample
from llmc.runtime.artifact.manifest import ArenaBytes, Limits
from llmc.runtime.artifact.strict_json import render_json, to_plain


@dataclass(frozen=True)
class Lowered:
    """What a backend generates code from: the final graphs of all entries, and where their weights lie."""

    model: str
    entries: Sequence[Graph]
    weights: Mapping[WeightExpr, PlacedWeight]
    limits: Limits

    @property
    def num_valid_tokens(self) -> int:
        (sample,) = (n.op for n in self.entries[0].nodes if isinstance(n.op, Sample))
        return sample.num_valid_tokens

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """Of its linears, in the order of their first."""
        nodes = [n for g in self.entries for n in g.nodes]
        return tuple(dict.fromkeys(n.op.scheme for n in nodes if isinstance(n.op, PackedLinear)))

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
        choose_linear(scheme, target)
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
            "kernels": [_reported(choose_linear(scheme, target)) for scheme in lowered.schemes],
            "entries": {g.name: launches_of(g) for g in lowered.entries},
            "bytes": {
                "weights": sum(w.num_bytes for w in lowered.placed),
                "kv_per_token": model.kv.layout.bytes_per_token,
                "arena_per_token": model.arena_per_token,
                "arena_per_row": model.arena_per_row,
            },
        }
        return part, report


def _reported(linear: Choice) -> dict[str, Any]:
    return {
        "op": "packed_linear",
        "chosen": linear.chosen.name,
        "reason": f"{linear.chosen.macs_per_cycle} multiply-adds a cycle and core, at peak",
        "rejected": linear.rejected,
    }


class CudaBackend:
    """Cubins, by NVRTC. Raises ToolchainError where it is not installed, IRError for a scheme that GPUs lack."""

    layout = WeightLayout.ROWS

    def __init__(self, target: Gpu, scheme: Scheme) -> None:
        if scheme.cuda is None:
            wanted = ", ".join(s.name for s in SCHEMES if s.cuda)
            raise IRError(f"no CUDA kernel multiplies in {scheme.name}: use {wanted}")
        self.target = target
        try:
            version = nvrtc.version()
        except (ImportError, RuntimeError) as error:
            raise ToolchainError(f"target {target.name} needs NVRTC: pip install 'llmc[cuda]' ({error})") from error
        self.toolchain = f"NVRTC {'.'.join(map(str, version))}"

    def part(self, lowered: Lowered, stage: Callable[[str], None]) -> tuple[TargetPart, dict[str, Any]]:
        target = self.target
        model = cuda_model.render(lowered.entries, lowered.weights, target, lowered.limits)

        def compile_kernels(sources: Mapping[str, str]) -> Mapping[str, bytes]:
            stage(f"compiling kernels for {target.name}")
            return nvrtc.compile_each(sources, target.arch)

        part = cuda_part(
            target.name,
            target.arch,
            tuple(sorted(target.features)),
            model.kv.layout,
            ArenaBytes(0, model.arena_per_token, model.arena_per_row, 0),
            lowered.placed,
            {name: render_json(to_plain(plan)).decode() for name, plan in model.plans.items()},
            lowered.entries,
            model.kernels.sources,
            nvrtc.headers(),
            compile_kernels,
        )
        report = {
            "kernels": model.choices,
            "entries": {name: dict(Counter(launch.op for launch in p.launches)) for name, p in model.plans.items()},
            "bytes": {
                "weights": sum(w.num_bytes for w in lowered.placed),
                "kv_per_token": model.kv.layout.bytes_per_token,
                "arena_per_token": model.arena_per_token,
                "arena_per_row": model.arena_per_row,
            },
        }
        return part, report


def backend_of(target: Target, scheme: Scheme) -> Backend:
    """Raises ToolchainError or IRError where the target's kernels cannot be made here."""
    return CpuBackend(target, scheme) if isinstance(target, CpuTarget) else CudaBackend(target, scheme)
