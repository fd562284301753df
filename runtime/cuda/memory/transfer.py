"""Arrays that go to the device, or come from it, as one block: fixed addresses, and one copy of what a step uses."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from llmc.runtime.cuda.driver.driver import call, driver
from llmc.runtime.cuda.memory.addresses import round_up
from llmc.runtime.cuda.memory.heap import Heap

GAP_BYTES = 16 << 10  # unused bytes that are copied along rather than cut out: a copy costs about as much


class Block:
    """Arrays by name, in pinned memory and, with the same layout, on the device. No array may be empty."""

    def __init__(self, heap: Heap, sizes: Mapping[str, int], what: str) -> None:
        self._cu = driver()
        self._offsets: dict[str, int] = {}
        self._sizes = dict(sizes)
        offset = 0
        for name, size in self._sizes.items():
            assert size > 0, name
            self._offsets[name] = offset
            offset = round_up(offset + size)
        self.num_bytes = offset
        self._host = heap.pinned(offset, what)
        self._host[:] = 0
        self._device = heap.device(offset, what)

    @property
    def addresses(self) -> dict[str, int]:
        """On the device."""
        return {name: self._device + offset for name, offset in self._offsets.items()}

    def array(self, name: str, dtype: Any) -> NDArray[Any]:
        """The pinned array: of inputs the caller writes it while no copy is under way, and reads it of outputs."""
        offset = self._offsets[name]
        return self._host[offset : offset + self._sizes[name]].view(dtype)

    def to_device(self, used: Mapping[str, int], stream: Any) -> None:
        """Queue the copy of the first `used` bytes of each array."""
        for start, end in self._spans(used):
            source = self._host[start:end].ctypes.data
            call(self._cu.cuMemcpyHtoDAsync, self._device + start, source, end - start, stream)

    def to_host(self, used: Mapping[str, int], stream: Any) -> None:
        """Queue the copy of the first `used` bytes of each array."""
        for start, end in self._spans(used):
            target = self._host[start:end].ctypes.data
            call(self._cu.cuMemcpyDtoHAsync, target, self._device + start, end - start, stream)

    def _spans(self, used: Mapping[str, int]) -> list[tuple[int, int]]:
        spans: list[tuple[int, int]] = []
        for name, offset in self._offsets.items():
            size = used.get(name, 0)
            assert size <= self._sizes[name], f"{name}: {size} bytes of {self._sizes[name]}"
            if not size:
                continue
            if spans and offset - spans[-1][1] <= GAP_BYTES:
                spans[-1] = spans[-1][0], offset + size
            else:
                spans.append((offset, offset + size))
        return spans
