"""Sizes of a CPU device: what `step.limits` plans for any, and this machine's memory and cores."""

from dataclasses import dataclass

from llmc.runtime.artifact.manifest import Manifest, TargetEntry
from llmc.runtime.cpu.memory import available_bytes, usable_cores
from llmc.runtime.step.arrays import StepLimits
from llmc.runtime.step.limits import LoadOptions, asked_kv_memory, num_blocks, plan_step, within

MAX_THREADS = 1024


@dataclass(frozen=True)
class LimitPlan:
    """Sizes of the device to create. `num_blocks`: of every KV group's pool."""

    step: StepLimits
    num_blocks: tuple[int, ...]
    threads: int


def plan_limits(manifest: Manifest, target: TargetEntry, options: LoadOptions) -> LimitPlan:
    """Raises InvalidParameter outside the envelope, NotEnoughMemory if no KV block fits."""
    step = plan_step(manifest, target, options)
    threads = within("threads", options.threads, min(usable_cores(), MAX_THREADS), MAX_THREADS)
    if options.kv_memory is None:
        budget, source = available_bytes() // 2, "half of the free memory"
    else:
        budget, source = asked_kv_memory(options.kv_memory), "kv_memory"
    return LimitPlan(step, num_blocks(target.kv, step, budget, source), threads)
