"""Row primitives of rows.h against float64, at widths around the vector (16) and the sum's stride (64)."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.conftest import Kernels
from tests.kernels.test_linear import pointer, random

WIDTHS = (1, 2, 15, 16, 17, 31, 63, 64, 65, 100, 576, 1001)
FLOAT = ctypes.c_float


def guarded(n: int) -> npt.NDArray[np.float32]:
    """n floats and 16 more that must stay as they are."""
    return np.full(n + 16, 12345.0, np.float32)


def untouched(y: npt.NDArray[np.float32], n: int) -> bool:
    return bool((y[n:] == 12345.0).all())


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm(kernels: Kernels, n: int, weighted: bool) -> None:
    x, w, y = random(1, n), random(2, n) if weighted else None, guarded(n)
    kernels.lib.row_rms_norm(pointer(x), pointer(w), FLOAT(1e-5), pointer(y), n)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt(np.mean(wide**2) + 1e-5) * (w if w is not None else 1)
    assert np.allclose(y[:n], expected, rtol=2e-6, atol=1e-7) and untouched(y, n)


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_layer_norm(kernels: Kernels, n: int, offset: float) -> None:
    """A large mean: the variance must come from the differences, not from the squares."""
    x, w, b, y = random(3, n) + np.float32(offset), random(4, n), random(5, n), guarded(n)
    kernels.lib.row_layer_norm(pointer(x), pointer(w), pointer(b), FLOAT(1e-5), pointer(y), n)
    wide = x.astype(np.float64)
    normal = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-5)
    assert np.allclose(y[:n], normal * w + b, atol=1e-5 if offset == 0 else 1e-3) and untouched(y, n)
    kernels.lib.row_layer_norm(pointer(x), None, None, FLOAT(1e-5), pointer(y), n)
    assert np.allclose(y[:n], normal, atol=1e-5 if offset == 0 else 1e-3)


@pytest.mark.parametrize("n", WIDTHS)
def test_sum_max_softmax(kernels: Kernels, n: int) -> None:
    x, y = random(6, n) * 20, guarded(n)
    kernels.lib.row_sum.restype = kernels.lib.row_max.restype = FLOAT
    assert abs(kernels.lib.row_sum(pointer(x), n) - x.astype(np.float64).sum()) < 1e-6 * np.abs(x).sum()
    assert kernels.lib.row_max(pointer(x), n) == x.max()
    kernels.lib.row_softmax(pointer(x), pointer(y), n)
    e = np.exp(x.astype(np.float64) - x.max())
    assert np.allclose(y[:n], e / e.sum(), rtol=3e-6, atol=1e-12) and untouched(y, n)
    x[n // 2] = np.nan
    assert np.isnan(kernels.lib.row_max(pointer(x), n))


@pytest.mark.parametrize("position", [0, 1, 17, 8191, 131071, 1048575])
@pytest.mark.parametrize("scale", [1.0, 1.2079])
def test_rope_angles_are_those_of_torch(kernels: Kernels, position: int, scale: float) -> None:
    """The product is rounded to f32 before cos and sin, as HF does; the rest is exact to rounding."""
    inv_freq = (1.0 / 10000.0 ** (np.arange(0, 128, 2) / 128)).astype(np.float32)
    cosine, sine = np.empty(64, np.float32), np.empty(64, np.float32)
    kernels.lib.row_rope_angles(position, pointer(inv_freq), FLOAT(scale), pointer(cosine), pointer(sine), 64)
    angle = (np.float32(position) * inv_freq).astype(np.float64)
    assert np.allclose(cosine, np.cos(angle) * np.float32(scale), rtol=3e-7, atol=1e-9)
    assert np.allclose(sine, np.sin(angle) * np.float32(scale), rtol=3e-7, atol=1e-9)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "pairs"), [(64, 32), (64, 16), (40, 20), (10, 3), (256, 128)])
@pytest.mark.parametrize("in_place", [False, True])
def test_rope(kernels: Kernels, interleaved: bool, head_dim: int, pairs: int, in_place: bool) -> None:
    heads = 3
    x, angle = random(7, heads * head_dim), random(8, pairs) * 10
    cosine, sine = np.cos(angle), np.sin(angle)
    parts = x.reshape(heads, head_dim)
    expected = parts.copy()
    first = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    expected[:, first] = parts[:, first] * cosine - parts[:, second] * sine
    expected[:, second] = parts[:, second] * cosine + parts[:, first] * sine
    y = x if in_place else guarded(x.size)
    kernels.lib.row_rope(
        int(interleaved), pointer(x), pointer(y), heads, head_dim, pairs, pointer(cosine), pointer(sine)
    )
    assert np.allclose(y[: heads * head_dim], expected.reshape(-1), atol=1e-6)
    assert in_place or untouched(y, heads * head_dim)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_barrier(kernels: Kernels, threads: int) -> None:
    """Nobody passes a barrier before all have arrived, with more threads than cores too."""
    assert kernels.lib.barrier_rounds(threads, 300) == 0
