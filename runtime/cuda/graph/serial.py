"""An entry without graphs: kernels launched one by one, each waited for, so that a fault names its kernel. Slow."""

from typing import Any

from llmc.runtime.cuda.driver.driver import CudaError, call, driver
from llmc.runtime.cuda.graph.arguments import Arguments
from llmc.runtime.cuda.graph.kernels import LoadedKernels
from llmc.runtime.cuda.graph.launching import failure, shape
from llmc.runtime.cuda.plan import Plan, Sizes


class SerialEntry:
    """Runs a plan's launches in its order."""

    def __init__(self, plan: Plan, kernels: LoadedKernels, arguments: Arguments) -> None:
        self._plan = plan
        self._kernels = kernels
        self._arguments = arguments

    def run(self, sizes: Sizes, stream: Any) -> None:
        """Raises StepFailed, which names the kernel that CUDA refuses or that faults."""
        cu = driver()
        for launch in self._plan.launches:
            shaped = shape(launch, sizes)
            if shaped.is_empty:
                continue
            variant = shaped.variant
            function, parameters = self._kernels[variant.kernel], self._arguments.of(variant, sizes)
            try:
                call(
                    cu.cuLaunchKernel,
                    function,
                    *shaped.grid,
                    variant.block,
                    1,
                    1,
                    variant.shared_bytes,
                    stream,
                    parameters,
                    0,
                )
                call(cu.cuStreamSynchronize, stream)
            except CudaError as error:
                raise failure(self._plan, sizes, shaped, error) from error

    def close(self) -> None:
        """There is nothing to give back."""
