"""CUDA graphs from plans: one per entry and bucket, built node by node.

A graph is built when a step first needs it, not at load: building takes milliseconds once per bucket, most engines
meet few buckets, and each graph holds device memory. All arguments are fixed at load, so no node is ever updated.
Launches with an empty grid are left out: those of sampled rows in a step that samples none.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

from llmc.runtime.cuda.driver.driver import CudaError, call, driver
from llmc.runtime.cuda.graph.arguments import Arguments
from llmc.runtime.cuda.graph.early import REFUSED, EarlyStart, EdgeRefused
from llmc.runtime.cuda.graph.kernels import LoadedKernels
from llmc.runtime.cuda.graph.launching import Shaped, failure, shape
from llmc.runtime.cuda.plan import Plan, Sizes


class EntryGraphs:
    """Executable graphs of one entry.

    `early`: may the device start a kernel before its one predecessor has ended? The kernel itself waits for it
    (grid_wait). Graphs of all entries share the answer: what a driver refuses is not asked for again.
    """

    def __init__(self, plan: Plan, kernels: LoadedKernels, arguments: Arguments, early: EarlyStart) -> None:
        self._cu = driver()
        self._plan = plan
        self._kernels = kernels
        self._arguments = arguments
        self._early = early
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
        if self._early.allowed:
            try:
                return self._build_with(True, sizes, stream)
            except EdgeRefused as refused:
                executable = self._build_with(False, sizes, stream)
                self._early.give_up(refused.error)
                return executable
        return self._build_with(False, sizes, stream)

    def _build_with(self, programmatic: bool, sizes: Sizes, stream: Any) -> Any:
        """Raises EdgeRefused where `programmatic` edges are what the driver does not take."""
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
                    ends.append((self._add(graph, shaped, sizes, after, programmatic),))
                except CudaError as error:
                    raise failure(self._plan, sizes, shaped, error) from error
            try:
                executable = call(self._cu.cuGraphInstantiate, graph, 0)
            except CudaError as error:
                raise _unless_refused(error, programmatic) from error
            try:
                call(self._cu.cuGraphUpload, executable, stream)
            except CudaError:
                call(self._cu.cuGraphExecDestroy, executable)
                raise
            return executable
        finally:
            with contextlib.suppress(CudaError):
                call(self._cu.cuGraphDestroy, graph)

    def _add(self, graph: Any, shaped: Shaped, sizes: Sizes, after: Sequence[Any], programmatic: bool) -> Any:
        parameters, variant = self._cu.CUDA_KERNEL_NODE_PARAMS(), shaped.variant
        parameters.func = self._kernels[variant.kernel]
        parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = shaped.grid
        parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = variant.block, 1, 1
        parameters.sharedMemBytes = variant.shared_bytes
        parameters.kernelParams = self._arguments.of(variant, sizes)
        early = programmatic and len(after) == 1
        full = [] if early else list(after)
        node = call(self._cu.cuGraphAddKernelNode, graph, full, len(full), parameters)
        if early:
            try:
                call(self._cu.cuGraphAddDependencies, graph, list(after), [node], [self._programmatic_edge()], 1)
            except CudaError as error:
                raise _unless_refused(error, programmatic) from error
        return node

    def _programmatic_edge(self) -> Any:
        """The downstream kernel may start when every block upstream has called grid_launch_dependents, or ended."""
        edge = self._cu.CUgraphEdgeData()
        edge.from_port = self._cu.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
        edge.type = int(self._cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
        return edge


def _unless_refused(error: CudaError, programmatic: bool) -> Exception:
    """The error, or that of a graph which the driver may take without programmatic edges."""
    return EdgeRefused(error) if programmatic and error.code in REFUSED else error
