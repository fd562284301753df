"""Steps on the device: one after the other, or one under way while the tokens of the one before it are dealt with."""

import contextlib
from dataclasses import dataclass

from llmc.runtime.device.protocol import Device, LaunchingDevice
from llmc.runtime.loop.batch import Batch
from llmc.runtime.loop.layout import lay_out
from llmc.runtime.loop.request import Request
from llmc.runtime.step.arrays import StepBuffers


@dataclass(frozen=True)
class UnderWay:
    """A step that was begun; `sampled[r]` is the request of row r."""

    batch: Batch
    step: StepBuffers
    sampled: list[Request]


class Running:
    """At most one step is under way. With a device that launches steps there are two sets of arrays, so that the
    outputs of the last one can still be read."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._launching = device if isinstance(device, LaunchingDevice) else None
        self._free = [StepBuffers(device.limits) for _ in range(2 if self.ahead else 1)]
        self._under_way: UnderWay | None = None

    @property
    def ahead(self) -> bool:
        """Whether a step computes while the host does something else."""
        return self._launching is not None

    def begin(self, batch: Batch) -> None:
        """Lay a batch out and begin it, the last one having landed. Raises StepFailed."""
        assert self._under_way is None, "a step is begun before the last one was waited for"
        step = self._free.pop(0)
        self._free.append(step)
        sampled = [chunk.request for chunk in lay_out(batch, step)]
        if self._launching is None:
            (self._device.decode if batch.decode_only else self._device.prefill)(step)
            self._under_way = UnderWay(batch, step, sampled)
        else:
            self._under_way = UnderWay(batch, step, sampled)
            (self._launching.launch_decode if batch.decode_only else self._launching.launch_prefill)(step)

    def land(self) -> UnderWay | None:
        """The step that was under way, with its outputs; None if none was. Raises StepFailed."""
        landed, self._under_way = self._under_way, None
        if landed is not None and self._launching is not None:
            self._launching.wait(landed.step)
        return landed

    def drop(self) -> None:
        """Whatever is under way is nobody's any more, but the device may be at it."""
        with contextlib.suppress(Exception):
            self.land()
