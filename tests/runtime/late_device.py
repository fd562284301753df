"""Devices that a loop can run ahead of, and that it cannot: steps in another thread, and none of its calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from llmc.runtime.device.protocol import Device, DeviceMemory
from llmc.runtime.kv.blocks import BlockCopy
from llmc.runtime.kv.swap import SwapSpace
from llmc.runtime.step.arrays import StepBuffers, StepLimits


class LateDevice:
    """Every step of `device` takes `seconds` more. `log` has what was done with step k: ("launch", k), ("wait", k)."""

    def __init__(self, device: Device, seconds: float = 0.0) -> None:
        self._device = device
        self._seconds = seconds
        self._thread = ThreadPoolExecutor(1)
        self._future: Future[None] | None = None
        self._steps = 0
        self.log: list[tuple[str, int]] = []

    @property
    def limits(self) -> StepLimits:
        return self._device.limits

    @property
    def num_blocks(self) -> tuple[int, ...]:
        return self._device.num_blocks

    @property
    def swap_space(self) -> SwapSpace | None:
        return self._device.swap_space

    @property
    def memory(self) -> DeviceMemory:
        return self._device.memory

    def prefill(self, step: StepBuffers) -> None:
        self.launch_prefill(step)
        self.wait(step)

    def decode(self, step: StepBuffers) -> None:
        self.launch_decode(step)
        self.wait(step)

    def launch_prefill(self, step: StepBuffers) -> None:
        self._launch(self._device.prefill, step)

    def launch_decode(self, step: StepBuffers) -> None:
        self._launch(self._device.decode, step)

    def wait(self, step: StepBuffers) -> None:
        assert self._future is not None, "nothing was launched"
        future, self._future = self._future, None
        self.log.append(("wait", self._steps))
        future.result()

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        assert self._future is None, "blocks are copied while a step is under way"
        self._device.copy_blocks(copies)

    def close(self) -> None:
        self._thread.shutdown()
        self._device.close()

    def _launch(self, entry: Callable[[StepBuffers], None], step: StepBuffers) -> None:
        assert self._future is None, "the last step was not waited for"
        self._steps += 1
        self.log.append(("launch", self._steps))
        self._future = self._thread.submit(self._compute, entry, step)

    def _compute(self, entry: Callable[[StepBuffers], None], step: StepBuffers) -> None:
        time.sleep(self._seconds)
        entry(step)


class InLockstep:
    """A device without what lets the loop run ahead of it."""

    def __init__(self, device: Device) -> None:
        self.limits = device.limits
        self.num_blocks = device.num_blocks
        self.memory = device.memory
        self.swap_space = device.swap_space
        self.prefill, self.decode = device.prefill, device.decode
        self.copy_blocks = device.copy_blocks
        self.close = device.close
