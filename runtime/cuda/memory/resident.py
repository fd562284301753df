"""What an engine keeps on the device from load to close: kernels, weights, arena, scratch, KV pools, step arrays."""

import contextlib
from collections.abc import Mapping, Sequence

from llmc.runtime.artifact.artifact import Artifact
from llmc.runtime.cuda.driver.context import Context
from llmc.runtime.cuda.driver.driver import CudaError, call, driver
from llmc.runtime.cuda.graph.kernels import LoadedKernels
from llmc.runtime.cuda.memory.addresses import Addresses, lay_out_arena, scratch_bytes
from llmc.runtime.cuda.memory.heap import Heap
from llmc.runtime.cuda.memory.host_blocks import HostBlocks
from llmc.runtime.cuda.memory.sizing import Needs, fit_pools, no_room_for_steps, pool_bytes
from llmc.runtime.cuda.memory.upload import place, upload
from llmc.runtime.cuda.plan import Plan, Sizes
from llmc.runtime.cuda.step.inputs import StepInputs
from llmc.runtime.cuda.step.outputs import StepOutputs
from llmc.runtime.cuda.step.sampling_stage import SamplingStage
from llmc.runtime.errors import NotEnoughMemory
from llmc.runtime.step.arrays import StepLimits


class Resident:
    """Raises NotEnoughMemory before a weight is copied; DeviceRefused, FileMismatch, CudaError."""

    def __init__(
        self,
        artifact: Artifact,
        plans: Mapping[str, Plan],
        buckets: Mapping[str, Sequence[Sizes]],
        limits: StepLimits,
        kv_memory: int | None,
        sampling: SamplingStage,
        swap_memory: int | None = None,
    ) -> None:
        kv = artifact.target.kv
        placed = place(artifact.weights, {name for plan in plans.values() for name in plan.names("weight")})
        layout = lay_out_arena(plans.values(), limits)
        scratch = scratch_bytes((plans[entry], buckets[entry]) for entry in plans)
        needs = Needs(placed.num_bytes, layout.num_bytes, sum(scratch.values()))
        self.context = Context()
        self.heap = Heap()
        self.kernels: LoadedKernels | None = None
        try:
            with self.context.current():
                self.kernels = LoadedKernels(artifact, plans.values())
                try:
                    self.inputs = StepInputs(self.heap, limits, sampling)
                    self.outputs = StepOutputs(self.heap, limits)
                except NotEnoughMemory as error:
                    raise no_room_for_steps(artifact.folder, kv, needs, error) from error
                self.num_blocks = fit_pools(artifact.folder, kv, limits, needs, self.context.memory(), kv_memory)
                pools = pool_bytes(kv, self.num_blocks)
                weights = self.heap.device(placed.num_bytes, "weights")
                self.addresses = Addresses(
                    arena=self.heap.device(layout.num_bytes, "arena"),
                    layout=layout,
                    limits=limits,
                    weights={name: weights + offset for name, offset in placed.offsets.items()},
                    inputs=self.inputs.addresses,
                    outputs=self.outputs.addresses,
                    scratch={name: self.heap.device(size, f"scratch {name}") for name, size in scratch.items()},
                    kv=tuple(self.heap.device(size, "KV pool") for size in pools),
                )
                # Kernels may read rows behind a step's last, in tiles; what they make of those is thrown away.
                if layout.num_bytes:
                    call(driver().cuMemsetD8Async, self.addresses.arena, 0, layout.num_bytes, self.context.stream)
                zeroed = {s.name for plan in plans.values() for s in plan.scratch if s.zeroed}
                for name in sorted(zeroed & scratch.keys()):
                    call(driver().cuMemsetD8Async, self.addresses.scratch[name], 0, scratch[name], self.context.stream)
                upload(artifact.weights, placed, weights, self.heap, self.context.stream)
                self.context.synchronize()
                self.host_blocks = HostBlocks(self.heap, kv, self.num_blocks, swap_memory)
                self.host_blocks.measure(self.context, self.addresses.arena, layout.num_bytes)
        except BaseException:
            self.close()
            raise
        self.weights_bytes = placed.num_bytes
        self.kv_bytes = sum(pools)
        self.arena_bytes = needs.arena + needs.scratch + self.inputs.num_bytes + self.outputs.num_bytes

    def close(self) -> None:
        """Free everything, in order, once the stream has ended; graphs must be gone. Closing again changes nothing."""
        with contextlib.suppress(CudaError), self.context.current():
            with contextlib.suppress(CudaError):  # a broken device gives nothing back before its context ends
                self.context.synchronize()
            self.heap.free()
            if self.kernels is not None:
                self.kernels.close()
        self.context.close()
