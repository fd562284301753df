"""Elementary functions, conversions and reductions of simd.h, simd_math.h and trig.h against float64."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.conftest import Kernels
from tests.kernels.test_linear import pointer

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


def every_size() -> Floats:
    """Floats of every exponent and sign, with the special values; 65536 or so."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 1 << 16, np.uint32)
    special = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, -3.4028235e38, 1.0, -1.0],
        np.float32,
    )
    return np.concatenate([bits.view(np.float32), special])


def near(low: float, high: float) -> Floats:
    return np.random.default_rng(1).uniform(low, high, 1 << 16).astype(np.float32)


def apply(kernels: Kernels, name: str, x: Floats) -> Floats:
    y = np.empty_like(x)
    getattr(kernels.lib, f"simd_{name}")(pointer(x), pointer(y), x.size)
    return y


def worst_ulp(got: Floats, expected: Doubles) -> float:
    """Largest error in units of the last place of the f32 nearest to the expected value; kinds must match."""
    with np.errstate(over="ignore"):
        nearest = expected.astype(np.float32)
    assert np.array_equal(np.isnan(got), np.isnan(nearest))
    finite = np.isfinite(nearest)
    # a result one ulp beyond the largest float may round to infinity
    edge = np.abs(expected) > 3.4028e38
    assert np.array_equal(got[~finite & ~np.isnan(nearest) & ~edge], nearest[~finite & ~np.isnan(nearest) & ~edge])
    check = finite & np.isfinite(got)
    assert (check | ~finite | edge).all(), "a finite result came out infinite"
    unit = np.spacing(np.minimum(np.abs(nearest[check]), np.float32(3e38))).astype(np.float64)
    return float(np.max(np.abs(got[check].astype(np.float64) - expected[check]) / unit, initial=0.0))


erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: Doubles) -> Doubles:
    return np.asarray(1 / (1 + np.exp(-x)))


def gelu_tanh(x: Doubles) -> Doubles:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


# function, largest error in ulp with fma, and without (the portable target rounds every product)
WHOLE_RANGE: dict[str, tuple[Callable[[Doubles], Doubles], float, float]] = {
    "exp": (np.exp, 1.5, 3),
    "log": (np.log, 1.5, 3),
    "tanh": (np.tanh, 2, 3),
    "erf": (erf, 1.5, 3),
    "sin": (np.sin, 0.51, 0.51),
    "cos": (np.cos, 0.51, 0.51),
    "sqrt": (np.sqrt, 0.5, 0.5),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5, 1.5),
    "round": (np.rint, 0, 0),
    "floor": (np.floor, 0, 0),
    "ceil": (np.ceil, 0, 0),
    "trunc": (np.trunc, 0, 0),
    "abs": (np.abs, 0, 0),
    "neg": (np.negative, 0, 0),
    "relu": (lambda x: np.maximum(x, 0), 0, 0),
}
DENSE = {
    "exp": (-104, 89), "log": (0, 4), "tanh": (-10, 10), "erf": (-4, 4), "sin": (-4e7, 4e7), "cos": (-4e7, 4e7),
    "round": (-1e7, 1e7), "floor": (-1e7, 1e7), "ceil": (-1e7, 1e7), "trunc": (-1e7, 1e7),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE_RANGE)
def test_function(kernels: Kernels, name: str) -> None:
    function, fused, unfused = WHOLE_RANGE[name]
    limit = fused if kernels.target.has("fma") else unfused
    inputs = [every_size()] + ([near(*DENSE[name])] if name in DENSE else [])
    for x in inputs:
        with np.errstate(all="ignore"):
            expected = function(x.astype(np.float64))
        assert worst_ulp(apply(kernels, name, x), expected) <= limit


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("sigmoid", sigmoid),
        ("silu", lambda x: x * sigmoid(x)),
        ("gelu_erf", lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2)))),
        ("gelu_tanh", gelu_tanh),
        ("softplus", lambda x: np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))),
    ],
)
def test_activation(kernels: Kernels, name: str, function: Callable[[Doubles], Doubles]) -> None:
    x = near(-30, 30)
    expected = function(x.astype(np.float64))
    # as torch's own f32 formulas: relative to the argument's size where the two parts cancel
    error = np.abs(apply(kernels, name, x) - expected) / (np.abs(expected) + 1e-2 * np.abs(x) + 1e-6)
    assert error.max() < 3e-6
    special = np.array([np.nan, 0.0, 3e38], np.float32)
    got = apply(kernels, name, special)
    assert np.isnan(got[0])
    assert not np.isnan(got[1:]).any()


def test_bf16_rounds_to_nearest_even(kernels: Kernels) -> None:
    x = np.concatenate([every_size(), (np.arange(1 << 16, dtype=np.uint32) << 16 | 0x8000).view(np.float32)])
    x = x[: x.size // 16 * 16]
    bits = x.view(np.uint32).astype(np.uint64)
    expected = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    nan = np.isnan(x)
    for function in ("simd_bf16", "simd_bf16_scalar"):
        got = np.empty(x.size, np.uint16)
        getattr(kernels.lib, function)(pointer(x), pointer(got), x.size)
        assert np.array_equal(got[~nan], expected[~nan])
        assert ((got[nan] & 0x7F80) == 0x7F80).all() and ((got[nan] & 0x7F) != 0).all()


def test_max_and_min_keep_nan(kernels: Kernels) -> None:
    values = np.array([0.0, 1.0, -1.0, np.inf, -np.inf, np.nan], np.float32)
    a, b = (np.ascontiguousarray(v.reshape(-1)) for v in np.meshgrid(values, values))
    for name, function in (("max", np.maximum), ("min", np.minimum), ("copysign", np.copysign)):
        y = np.empty_like(a)
        getattr(kernels.lib, f"simd_{name}")(pointer(a), pointer(b), pointer(y), a.size)
        assert np.array_equal(y, function(a, b), equal_nan=True), name


def test_integer_conversions(kernels: Kernels) -> None:
    x = np.concatenate([near(-3e9, 3e9)[:4096], near(-200, 200)[:4096], np.arange(-8, 8, dtype=np.float32) + 0.5])
    got = np.empty(x.size, np.int32)
    kernels.lib.simd_to_i32(pointer(x), pointer(got), x.size)
    rounded = np.rint(x.astype(np.float64))
    inside = (rounded >= -(2**31)) & (rounded < 2**31)
    assert np.array_equal(got, np.where(inside, rounded, -(2**31)).astype(np.int64))
    narrow = np.empty(x.size, np.int8)
    kernels.lib.simd_store_s8(pointer(got), pointer(narrow), x.size)
    assert np.array_equal(narrow, np.clip(got, -128, 127))


def test_dot_i8_is_exact(kernels: Kernels) -> None:
    rng = np.random.default_rng(2)
    u, s = rng.integers(0, 256, (100, 64), np.uint8), rng.integers(-128, 128, (100, 64)).astype(np.int8)
    u[:2], s[0], s[1] = 255, -128, 127
    acc = rng.integers(-1000, 1000, (100, 16)).astype(np.int32)
    expected = acc + (u.astype(np.int32) * s).reshape(100, 16, 4).sum(axis=2)
    kernels.lib.simd_dot_i8(pointer(u), pointer(s), pointer(acc), 100)
    assert np.array_equal(acc, expected)


def test_reductions_have_one_tree(kernels: Kernels) -> None:
    """lanes i and i + 8, then i + 4, i + 2, i + 1: the same bits on every target."""
    rng = np.random.default_rng(3)
    for function in (kernels.lib.simd_reduce_add, kernels.lib.simd_reduce_max):
        function.restype = ctypes.c_float
    for _ in range(100):
        x = (rng.standard_normal(16) * 10.0 ** rng.integers(-5, 5, 16)).astype(np.float32)
        tree = x
        while tree.size > 1:
            tree = tree[: tree.size // 2] + tree[tree.size // 2 :]
        assert kernels.lib.simd_reduce_add(pointer(x)) == tree[0]
        assert kernels.lib.simd_reduce_max(pointer(x)) == x.max()
