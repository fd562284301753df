"""From an engine's target to the device that runs it."""

from llmc.runtime.artifact.artifact import Artifact
from llmc.runtime.artifact.manifest import CUDA
from llmc.runtime.cpu.device import CpuDevice
from llmc.runtime.cpu.limits import plan_limits
from llmc.runtime.cpu.threads import SharedThreads
from llmc.runtime.device.protocol import Device
from llmc.runtime.step.limits import LoadOptions


def open_device(artifact: Artifact, options: LoadOptions, threads: SharedThreads | None = None) -> Device:
    """The device of the artifact's target, ready for steps. Raises EngineError subclasses, InvalidParameter.

    `threads` are those of a CPU's kernels, if they are to be shared with other engines of the process.
    """
    if artifact.target.kind == CUDA:
        from llmc.runtime.cuda.device import CudaDevice

        return CudaDevice(artifact, options)
    plan = plan_limits(artifact.manifest, artifact.target, options)
    return CpuDevice(artifact, plan.step, plan.num_blocks, plan.threads, threads)
