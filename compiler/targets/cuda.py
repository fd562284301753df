"""GPUs as targets: a cubin for each kernel, by NVRTC."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from llmc.codegen.cpu.measured_limits import MeasuredLimits
from llmc.codegen.cpu.toolchain import ToolchainError
from llmc.codegen.cuda import model as cuda_model
from llmc.codegen.cuda.cost.roofline import Launched, machine
from llmc.codegen.cuda.linear.params import COMPUTED
from llmc.codegen.cuda.plan.storage import CudaStorage
from llmc.codegen.cuda.target import nvrtc
from llmc.codegen.cuda.target.assumptions import ASSUMED
from llmc.codegen.cuda.target.gpus import Gpu
from llmc.codegen.package import TargetPart, cuda_part
from llmc.codegen.roofline import Machine
from llmc.codegen.work import Storage
from llmc.compiler.progress import Progress
from llmc.compiler.targets.backend import Builder, Estimator, Lowered
from llmc.ir.formats import Scheme, WeightLayout
from llmc.ir.graph import Graph, IRError
from llmc.ir.types import DType
from llmc.runtime.artifact.manifest import CUDA, ArenaBytes
from llmc.runtime.artifact.strict_json import render_json, to_plain


class CudaBackend:
    """targets.backend.Backend."""

    kind = CUDA
    layout = WeightLayout.ROWS
    kv_dtypes = frozenset({DType.BF16, DType.F16})

    def __init__(self, gpu: Gpu) -> None:
        self.target = gpu
        self.name = gpu.name
        self.product = gpu.product
        self.storage: Storage = CudaStorage()
        self.memory_bytes = gpu.memory_bytes
        self.usable_bytes = int(gpu.memory_bytes * ASSUMED.memory)

    def is_measured_by(self, limits: MeasuredLimits) -> bool:
        return False

    def machine(self, limits: MeasuredLimits | None) -> Machine:
        return machine(self.target)

    def estimator(self, graph: Graph) -> Estimator:
        return Launched(graph, self.target).estimate

    def refuses(self, scheme: Scheme) -> str | None:
        if scheme in COMPUTED:
            return None
        return f"no CUDA kernel multiplies in {scheme}: use {', '.join(map(str, COMPUTED))}"

    def builder(self, scheme: Scheme) -> Builder:
        if (why := self.refuses(scheme)) is not None:
            raise IRError(why)
        return CudaBuilder(self.target)


class CudaBuilder:
    """Raises ToolchainError where NVRTC is not installed."""

    def __init__(self, target: Gpu) -> None:
        self.target = target
        try:
            version = nvrtc.version()
        except (ImportError, RuntimeError) as error:
            raise ToolchainError(f"target {target.name} needs NVRTC: pip install 'llmc[cuda]' ({error})") from error
        self.toolchain = f"NVRTC {'.'.join(map(str, version))}"

    def part(self, lowered: Lowered, progress: Progress) -> tuple[TargetPart, dict[str, Any]]:
        target = self.target
        model = cuda_model.render(lowered.entries, lowered.weights, target, lowered.limits)

        def compile_kernels(sources: Mapping[str, str]) -> Mapping[str, bytes]:
            progress.stage(f"compiling kernels for {target.name}")
            return nvrtc.compile_each(sources, target.arch, lambda done: progress.amount(done, len(sources), "kernels"))

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
            "kernels": [asdict(preference) for preference in model.kernels.preferences.values()],
            "entries": {name: dict(Counter(launch.op for launch in p.launches)) for name, p in model.plans.items()},
            "bytes": {
                "weights": sum(w.num_bytes for w in lowered.placed),
                "kv_per_token": model.kv.layout.bytes_per_token,
                "arena_per_token": model.arena_per_token,
                "arena_per_row": model.arena_per_row,
            },
        }
        return part, report
