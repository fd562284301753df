"""CPUs as targets: a library, model.so, by a C++ compiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from llmc.codegen.cpu import kv
from llmc.codegen.cpu.linear_kernels import choose_linear
from llmc.codegen.cpu.measured_limits import MeasuredLimits
from llmc.codegen.cpu.model import render
from llmc.codegen.cpu.storage import CpuStorage
from llmc.codegen.cpu.target import CpuTarget
from llmc.codegen.cpu.toolchain import compile_library, find_toolchain
from llmc.codegen.package import TargetPart, cpu_part
from llmc.codegen.preference import Preference
from llmc.codegen.roofline import Machine
from llmc.codegen.work import Storage
from llmc.compiler.progress import Progress
from llmc.compiler.targets.backend import Builder, Lowered
from llmc.ir.formats import Scheme, WeightLayout
from llmc.ir.graph import Graph, IRError
from llmc.ir.ops.constant import Weight
from llmc.runtime.artifact.manifest import CPU


class CpuBackend:
    """targets.backend.Backend."""

    kind = CPU
    layout = WeightLayout.PANELS
    kv_dtypes = kv.DTYPES
    memory_bytes = None
    usable_bytes = None

    def __init__(self, target: CpuTarget) -> None:
        self.target = target
        self.name = target.name
        self.product = target.mcpu
        self.storage: Storage = CpuStorage()

    def is_measured_by(self, limits: MeasuredLimits) -> bool:
        return limits.mcpu == self.target.mcpu

    def machine(self, limits: MeasuredLimits | None) -> Machine | None:
        if limits is None or not self.is_measured_by(limits):
            return None
        return Machine(limits.bandwidth, self.target.l2_bytes, limits.peaks)

    def estimator(self, graph: Graph) -> None:
        return None

    def refuses(self, scheme: Scheme) -> str | None:
        try:
            choose_linear(scheme, self.target)
        except IRError as error:
            return str(error)
        return None

    def builder(self, scheme: Scheme) -> Builder:
        return CpuBuilder(self.target, scheme)


class CpuBuilder:
    """Raises ToolchainError where there is no compiler, IRError for a scheme that CPUs lack."""

    def __init__(self, target: CpuTarget, scheme: Scheme) -> None:
        self.target = target
        choose_linear(scheme, target)
        self._compiler = find_toolchain()
        self.toolchain = self._compiler.name

    def part(self, lowered: Lowered, progress: Progress) -> tuple[TargetPart, dict[str, Any]]:
        target = self.target
        model = render(lowered.model, target.name, list(lowered.entries), lowered.weights, lowered.num_valid_tokens)

        def compile_model(texts: Mapping[str, str], out: Path) -> None:
            progress.stage(f"compiling kernels for {target.name}")
            compile_library(texts, target, out, self._compiler)

        part = cpu_part(
            target.name,
            target.arch,
            target.features,
            model,
            lowered.limits.max_seq_len,
            lowered.placed,
            lowered.entries,
            compile_model,
        )
        report = {
            "kernels": [asdict(preference) for preference in _preferences(lowered.schemes, target)],
            "entries": {g.name: _launches(g) for g in lowered.entries},
            "bytes": {
                "weights": sum(w.num_bytes for w in lowered.placed),
                "kv_per_token": model.kv.layout.bytes_per_token,
                "arena_per_token": model.arena.per_token,
                "arena_per_row": model.arena.per_row,
            },
        }
        return part, report


def _preferences(schemes: Sequence[Scheme], target: CpuTarget) -> list[Preference]:
    """The kernels of linears in these schemes."""
    found = [choose_linear(scheme, target).preference for scheme in schemes]
    if len(found) == 1:
        return found
    return [replace(p, of=f"linears in {scheme}") for scheme, p in zip(schemes, found, strict=True)]


def _launches(graph: Graph) -> dict[str, int]:
    """How many launches of each op."""
    return dict(sorted(Counter(n.op.mnemonic() for n in graph.nodes if not isinstance(n.op, Weight)).items()))
