"""CUDA graphs from plans: one per entry and bucket, built node by node.

A graph is built when a step first needs it, not at load: building takes milliseconds once per bucket, most engines
meet few buckets, and each graph holds device memory. All arguments are fixed at load, so no node is ever updated.
Launches with an empty grid are left out: those of sampled rows in a step that samples none.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

from llmc.runtime.cuda.arguments import Arguments
from llmc.runtime.cuda.driver import CudaError, call, driver
from llmc.runtime.cuda.kernels import Kernels
from llmc.runtime.cuda.launching import Shaped, failure, shape
from llmc.runtime.cuda.plan import Plan, Sizes


class EntryGraphs:
    """Executable graphs of one entry.

    `programmatic`: the device starts a kernel before its one predecessor has ended (compute capability 9.0 and later);
    the kernel itself waits for it (grid_wait).
    """

    def __init__(self, plan: Plan, kernels: Kernels, arguments: Arguments, programmatic: bool) -> None:
        self._cu = driver()
        self._plan = plan
        self._kernels = kernels
        self._arguments = arguments
        self._programmatic = programmatic
        self._ready: dict[Sizes, Any] = {}

    def run(self, sizes: Sizes, stream: Any) -> None:
        """Queue the graph for a bucket. Raises StepFailed, which names the kernel that CUDA refuses; CudaError."""
        if sizes not in self._ready:
            self._ready[sizes] = self._build(sizes, stream)
        call(self._cu.cuGraphLaunch, self._ready[sizes], stream)

    def close(self) -> None:
        """Destroy all; none may run any more."""
        while self._ready:
            _, executable = self._ready.popitem()
            with contextlib.suppress(CudaError):
                call(self._cu.cuGraphExecDestroy, executable)

    def _build(self, sizes: Sizes, stream: Any) -> Any:
        graph = call(self._cu.cuGraphCreate, 0)
        try:
            ends: list[tuple[Any, ...]] = []  # of each launch: nodes that have ended when it has
            for launch in self._plan.launches:
                shaped = shape(launch, sizes)
                after = tuple(dict.fromkeys(node for before in launch.after for node in ends[before]))
                if shaped.is_empty:
                    ends.append(after)
                    continue
                try:
                    ends.append((self._add(graph, shaped, sizes, after),))
                except CudaError as error:
                    raise failure(self._plan, sizes, shaped, error) from error
            executable = call(self._cu.cuGraphInstantiate, graph, 0)
            try:
                call(self._cu.cuGraphUpload, executable, stream)
            except CudaError:
                call(self._cu.cuGraphExecDestroy, executable)
                raise
            return executable
        finally:
            with contextlib.suppress(CudaError):
                call(self._cu.cuGraphDestroy, graph)

    def _add(self, graph: Any, shaped: Shaped, sizes: Sizes, after: Sequence[Any]) -> Any:
        parameters, variant = self._cu.CUDA_KERNEL_NODE_PARAMS(), shaped.variant
        parameters.func = self._kernels[variant.kernel]
        parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = shaped.grid
        parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = variant.block, 1, 1
        parameters.sharedMemBytes = variant.shared_bytes
        parameters.kernelParams = self._arguments.of(variant, sizes)
        early = self._programmatic and len(after) == 1
        full = [] if early else list(after)
        node = call(self._cu.cuGraphAddKernelNode, graph, full, len(full), parameters)
        if early:
            call(self._cu.cuGraphAddDependencies, graph, list(after), [node], [self._programmatic_edge()], 1)
        return node

    def _programmatic_edge(self) -> Any:
        """The downstream kernel may start when every block upstream has called grid_launch_dependents, or ended."""
        edge = self._cu.CUgraphEdgeData()
        edge.from_port = self._cu.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
        edge.type = int(self._cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
        return edge
