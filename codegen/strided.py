"""Which element of a row-major block stands at each place of a walk: an offset, and a stride for every dim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Strided:
    """Place (i0, i1, ...) of `shape` is element offset + i0 * strides[0] + i1 * strides[1] + ..."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)

    def broadcast(self, shape: tuple[int, ...]) -> Strided:
        """Under a shape this one broadcasts to (stride 0 where a dim repeats); leading dims of 1 may fall away."""
        lead = len(shape) - len(self.shape)
        strides = tuple(
            0 if i < lead or (self.shape[i - lead] == 1 and d != 1) else self.strides[i - lead]
            for i, d in enumerate(shape)
        )
        return Strided(self.offset, shape, strides)

    def permuted(self, perm: Sequence[int]) -> Strided:
        return Strided(self.offset, tuple(self.shape[p] for p in perm), tuple(self.strides[p] for p in perm))

    def sliced(self, axis: int, start: int, stop: int, step: int = 1) -> Strided:
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + start * strides[axis]
        shape[axis] = len(range(start, stop, step))
        strides[axis] *= step
        return Strided(offset, tuple(shape), tuple(strides))

    def viewed(self, shape: tuple[int, ...]) -> Strided | None:
        """The same walk under another shape, None where strides cannot say it."""
        old = self.collapsed()
        strides = [0] * len(shape)
        at = len(old) - 1
        left = old[at][0] if old else 1  # of old's dim `at`, still to be covered
        step = old[at][1] if old else 0
        for i in range(len(shape) - 1, -1, -1):
            if shape[i] == 1:
                continue
            if left == 1:
                at -= 1
                left, step = old[at]
            if left % shape[i]:
                return None
            strides[i] = step
            step *= shape[i]
            left //= shape[i]
        return Strided(self.offset, shape, tuple(strides))

    def collapsed(self) -> tuple[tuple[int, int], ...]:
        """(size, stride) of as few dims as describe the walk, none of them of size 1."""
        dims: list[tuple[int, int]] = []
        for size, stride in zip(self.shape, self.strides, strict=True):
            if size == 1:
                continue
            if dims and dims[-1][1] == stride * size:
                dims[-1] = (dims[-1][0] * size, stride)
            else:
                dims.append((size, stride))
        return tuple(dims)

    @property
    def inner_stride(self) -> int:
        """Of the innermost dim, 0 when there is one place only."""
        dims = self.collapsed()
        return dims[-1][1] if dims else 0

    @property
    def whole(self) -> bool:
        """Does the walk take the block's elements in their order?"""
        return self.offset == 0 and self.collapsed() in ((), ((self.size, 1),))


def dense(shape: tuple[int, ...], offset: int = 0) -> Strided:
    return Strided(offset, shape, tuple(prod(shape[i + 1 :]) for i in range(len(shape))))
