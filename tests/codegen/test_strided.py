"""Strided walks against numpy's views of the same block."""

from __future__ import annotations

from math import prod

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from llmc.codegen.strided import Strided, dense

Indices = npt.NDArray[np.int64]


def places(walk: Strided) -> Indices:
    """The elements a walk takes, in its shape."""
    out = np.full(walk.shape, walk.offset)
    for axis, stride in enumerate(walk.strides):
        steps = np.arange(walk.shape[axis]) * stride
        out = out + steps.reshape((-1,) + (1,) * (len(walk.shape) - axis - 1))
    return out


@st.composite
def walks(draw: st.DrawFn) -> tuple[Strided, Indices]:
    """A walk made of random moves, and numpy's idea of it."""
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 6)), min_size=1, max_size=3)))
    walk, want = dense(shape), np.arange(prod(shape)).reshape(shape)
    for move in draw(st.lists(st.sampled_from(("permute", "slice", "broadcast", "view")), max_size=4)):
        rank = len(walk.shape)
        if move == "permute":
            perm = draw(st.permutations(range(rank)))
            walk, want = walk.permuted(perm), want.transpose(perm)
        elif move == "slice":
            axis = draw(st.integers(0, rank - 1))
            start = draw(st.integers(0, walk.shape[axis] - 1))
            stop, step = draw(st.integers(start + 1, walk.shape[axis])), draw(st.integers(1, 3))
            walk = walk.sliced(axis, start, stop, step)
            want = want[(slice(None),) * axis + (slice(start, stop, step),)]
        elif move == "broadcast":
            wider = (
                draw(st.sampled_from((1, 2))),
                *(draw(st.sampled_from((d, 3))) if d == 1 else d for d in walk.shape),
            )
            walk, want = walk.broadcast(wider), np.broadcast_to(want, wider)
        else:
            found = walk.viewed(draw(st.sampled_from(shapes(walk.size))))
            if found is not None:
                walk, want = found, want.reshape(found.shape)
    return walk, want


def shapes(size: int) -> list[tuple[int, ...]]:
    return [(size,), *((size // d, d) for d in (1, 2, 3, 4, 6) if size % d == 0), (1, size, 1)]


@given(walks())
def test_moves_are_numpy_s(case: tuple[Strided, Indices]) -> None:
    walk, want = case
    assert np.array_equal(places(walk), want)
    flat = (
        Strided(walk.offset, *zip(*walk.collapsed(), strict=True)) if walk.collapsed() else Strided(walk.offset, (), ())
    )
    assert np.array_equal(places(flat).reshape(-1), want.reshape(-1))
    assert walk.whole == np.array_equal(want.reshape(-1), np.arange(want.size))


@given(walks())
def test_a_view_is_refused_only_where_numpy_would_copy(case: tuple[Strided, Indices]) -> None:
    walk, _ = case
    block = np.arange(1 << 12)
    strides = tuple(s * block.itemsize for s in walk.strides)
    numpy_view = np.lib.stride_tricks.as_strided(block[walk.offset :], walk.shape, strides)
    for shape in shapes(walk.size):
        found = walk.viewed(shape)
        assert (found is not None) == np.shares_memory(numpy_view.reshape(shape), block), (walk, shape)


def test_leading_ones_fall_away() -> None:
    assert dense((1, 1, 5)).broadcast((2, 5)) == Strided(0, (2, 5), (0, 1))
    assert dense((1, 1, 5)).broadcast((5,)) == Strided(0, (5,), (1,))
