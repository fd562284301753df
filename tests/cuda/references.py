"""float64 references of every kernel, and the tolerance their number format allows.

A bf16 result may be off by one rounding (2^-9 relative; 2^-8 is asked, approximations of exp2 and rsqrt
included) plus the f32 accumulation error, proportional to the sum of magnitudes that were added.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmc.codegen.cuda.kernel import Epilogue

BF16_STEP = 2.0**-8
F32_SUM = 2.0**-18


class Wrong(AssertionError):
    """A kernel's result lies outside the format's tolerance."""


@dataclass(frozen=True)
class Expected:
    value: np.ndarray  # float64
    tolerance: np.ndarray  # absolute, same shape


def f64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gemm(a: np.ndarray, w: np.ndarray, bias: np.ndarray, residual: np.ndarray, epilogue: Epilogue) -> Expected:
    c = f64(a) @ f64(w).T
    slack = np.abs(f64(a)) @ np.abs(f64(w)).T * F32_SUM
    if epilogue is Epilogue.SWIGLU:
        groups = c.reshape(len(c), -1, 2, 8)
        gate, up = groups[:, :, 0].reshape(len(c), -1), groups[:, :, 1].reshape(len(c), -1)
        wide = slack.reshape(len(c), -1, 2, 8).max(2).reshape(len(c), -1)
        value = silu(gate) * up
        return Expected(value, np.abs(value) * BF16_STEP + wide * (1.1 * np.abs(up) + np.abs(silu(gate)) + 1))
    value = c + (f64(bias) if epilogue.has_bias else 0) + (f64(residual) if epilogue.has_residual else 0)
    return Expected(value, np.abs(value) * BF16_STEP + slack + 1e-30)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> Expected:
    """Causal, the last query row sees every key. q [n, Hq, D]; k, v [context, Hkv, D]."""
    n, heads, _ = q.shape
    context, kv_heads, _ = k.shape
    kf, vf = (np.repeat(f64(x), heads // kv_heads, axis=1) for x in (k, v))
    s = np.einsum("qhd,khd->hqk", f64(q), kf) * scale
    s = np.where(np.arange(context)[None, None, :] <= (context - n + np.arange(n))[None, :, None], s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    value = np.einsum("hqk,khd->qhd", p, vf)
    magnitude = np.einsum("hqk,khd->qhd", p, np.abs(vf))
    return Expected(value, np.abs(value) * BF16_STEP + magnitude * BF16_STEP)
