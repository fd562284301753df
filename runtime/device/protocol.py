"""What the engine asks of where its steps run: the `Device` protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from llmc.runtime.kv.swap import BlockCopy, SwapSpace
from llmc.runtime.step.arrays import StepBuffers, StepLimits


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes a device holds."""

    weights_bytes: int
    kv_bytes: int
    arena_bytes: int


class Device(Protocol):
    """Executes steps and owns the KV pools, the scratch memory and the sampler."""

    @property
    def limits(self) -> StepLimits: ...

    @property
    def num_blocks(self) -> tuple[int, ...]:
        """Of every KV group's pool."""

    @property
    def swap_space(self) -> SwapSpace | None:
        """Host memory that it copies KV blocks to and from; None where the pools lie in host memory."""

    @property
    def memory(self) -> DeviceMemory: ...

    def prefill(self, step: StepBuffers) -> None:
        """Run a step of any mix of chunks and single tokens. Raises StepFailed."""

    def decode(self, step: StepBuffers) -> None:
        """Run a step in which every sequence has exactly one token, which is sampled. Raises StepFailed."""

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy contents of KV blocks in this order, after the steps before and before those that follow. Raises
        StepFailed."""

    def close(self) -> None:
        """Give back memory and threads; closing again changes nothing."""


@runtime_checkable
class LaunchingDevice(Device, Protocol):
    """One that computes a step while the host does something else.

    One step is under way at a time: each launch is waited for before the next one. Until then the step's arrays, and
    the ids they point to, stay as they are.
    """

    def launch_prefill(self, step: StepBuffers) -> None:
        """Begin what `prefill` does. Raises StepFailed."""

    def launch_decode(self, step: StepBuffers) -> None:
        """Begin what `decode` does. Raises StepFailed."""

    def wait(self, step: StepBuffers) -> None:
        """Until the step that was launched is through and its outputs are in its arrays. Raises StepFailed."""
