"""What predictions and choices between kernels take for granted of GPUs, each with where it is from. Nothing here was
measured by us; docs/roofline.md discusses it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Assumptions:
    """What no data sheet says. Seconds, hertz, bytes a clock, or fractions of what the data sheet says."""

    gap: float = 1.3e-6
    """Between the end of a kernel and the start of the next in a graph: measured on H100 by Spector et al. 2025
    ("Look Ma, No Bubbles", Hazy Research)."""
    gap_dependent: float = 0.7e-6
    """The same with programmatic dependent launch, which overlaps the launch but not the wait. Assumed: half."""
    ramp: float = 0.7e-6
    """From a kernel's first load to data at full rate, and from its last to the end of its stores. Assumed: about one
    latency of device memory (0.4 to 0.6 us on Ampere and Hopper) and the drain."""
    bandwidth: float = 0.90
    """Of the data sheet's bandwidth, for long streams. 3.02 of 3.35 TB/s is what copies reach on H100."""
    clock: float = 1.7e9
    """Hertz, near the boost clock of every GPU known here."""
    memory_latency: float = 8e-7
    """Seconds from asking for bytes to having them, where the memory system is loaded. Assumed: twice the idle one."""
    l2_latency: float = 4e-7
    """The same of L2. Assumed."""
    sm_memory: float = 28
    """Bytes a clock that one SM draws from memory at most. Assumed: half of H100's SMs saturate its memory."""
    sm_l2: float = 48
    """And from L2. Assumed: three quarters of the 64 that its port takes."""
    matrix: float = 0.70
    """Of what a tensor-core instruction and the tile's loads from shared memory allow, in the main loop of a linear.
    Assumed (libraries reach 0.7 to 0.75 of the data sheet on H100, 0.85 on A100)."""
    attention: float = 0.50
    """The same for attention, whose exponentials stand between its products. Assumed."""
    vector: float = 0.50
    """Of the vector units' rate, for code that is not all multiply-adds. Assumed."""
    mma_sync: float = 0.50
    """Of the tensor cores' peak that mma.sync reaches where no figure is known (sm_100a). Assumed."""
    memory: float = 0.94
    """Of the device's memory that an engine may fill: ECC, reserved pages and the context take the rest. Assumed."""


ASSUMED = Assumptions()
