"""Loops over strided views of one row: what a rows kernel does to elements, whatever their layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmc.codegen.strided import Strided
from llmc.codegen.strided import dense as row_major


@dataclass(frozen=True)
class Ref:
    """Where the elements of one row of a value are: a float pointer expression, and a stride for every dim."""

    pointer: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def at(self) -> Strided:
        """The walk from the pointer on."""
        return Strided(0, self.shape, self.strides)

    @property
    def size(self) -> int:
        return self.at.size

    @property
    def contiguous(self) -> bool:
        return self.at.whole

    def broadcast(self, shape: tuple[int, ...]) -> Ref:
        """The same elements under a shape they broadcast to (stride 0 where a dim repeats)."""
        return self._walked(self.at.broadcast(shape))

    def permuted(self, perm: Sequence[int]) -> Ref:
        return self._walked(self.at.permuted(perm))

    def sliced(self, axis: int, start: int, stop: int, step: int) -> Ref:
        return self._walked(self.at.sliced(axis, start, stop, step))

    def _walked(self, at: Strided) -> Ref:
        pointer = f"({self.pointer} + {at.offset})" if at.offset else self.pointer
        return Ref(pointer, at.shape, at.strides)


def dense(pointer: str, shape: tuple[int, ...]) -> Ref:
    return Ref(pointer, shape, row_major(shape).strides)


def collapse(refs: Sequence[Ref]) -> list[Ref]:
    """Equal-shaped refs with as few dims as describe the same walk."""
    shape = list(refs[0].shape)
    strides = [list(r.strides) for r in refs]
    keep = [i for i, d in enumerate(shape) if d != 1]
    shape = [shape[i] for i in keep]
    strides = [[s[i] for i in keep] for s in strides]
    i = len(shape) - 2
    while i >= 0:
        if all(s[i] == s[i + 1] * shape[i + 1] for s in strides):
            shape[i] *= shape.pop(i + 1)
            for s in strides:
                del s[i]
        i -= 1
    return [Ref(r.pointer, tuple(shape), tuple(s)) for r, s in zip(refs, strides, strict=True)]


def over_outer(shape: tuple[int, ...], refs: Sequence[Ref], body: Callable[[list[str]], list[str]]) -> list[str]:
    """Nested loops over all dims of `shape`; body gets each ref's pointer at the current place."""
    if not shape:
        return body([r.pointer for r in refs])
    index = [f"i{k}" for k in range(len(shape))]
    pointers = []
    for ref in refs:
        terms = [f"{i} * {s}" if s != 1 else i for i, s in zip(index, ref.strides, strict=True) if s]
        pointers.append(" + ".join([ref.pointer, *terms]))
    lines = body(pointers)
    for i, d in reversed(list(zip(index, shape, strict=True))):
        lines = [f"for (int {i} = 0; {i} < {d}; ++{i}) {{", *("  " + line for line in lines), "}"]
    return lines


def pointwise(out: Ref, leaves: Sequence[Ref], value: Callable[[list[str]], str]) -> list[str]:
    """out[...] = value(leaves[...]) over vectors of 16 along the last dim."""
    refs = collapse([out, *(leaf.broadcast(out.shape) for leaf in leaves)])
    width = refs[0].shape[-1] if refs[0].shape else 1
    last = [r.strides[-1] if r.strides else 1 for r in refs]
    outer = refs[0].shape[:-1]

    def body(pointers: list[str]) -> list[str]:
        count = "" if width % 16 == 0 else f", {width} - i"
        loads = []
        for pointer, stride in zip(pointers[1:], last[1:], strict=True):
            if stride == 0:
                loads.append(f"splat(*({pointer}))")
            elif stride == 1:
                loads.append(f"load({pointer} + i{count})")
            else:
                loads.append(f"load_strided({pointer} + i * {stride}, {stride}, {width} - i)")
        if last[0] == 1:
            line = f"store({pointers[0]} + i, {value(loads)}{count});"
        else:
            line = f"store_strided({pointers[0]} + i * {last[0]}, {last[0]}, {value(loads)}, {width} - i);"
        return [f"for (int i = 0; i < {width}; i += 16) {line}"]

    return over_outer(outer, [Ref(r.pointer, outer, r.strides[:-1]) for r in refs], body)
