"""Runs each kernel on the emulator for a shape and compares it with float64. Used by the tests, the corpus of
planted bugs and the mutation script."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import linear_cases
import numpy as np
import references
from ml_dtypes import bfloat16
from references import Expected

from llmc.codegen.cuda.attention import DecodeAttentionParams, PrefillAttentionParams, RopeAppendParams
from llmc.codegen.cuda.gemm import GemmParams, HopperGemmParams, SkinnyGemmParams
from llmc.codegen.cuda.kernel import Epilogue, KernelParams, render
from llmc.codegen.cuda.linear_params import LinearMmaParams, LinearWgmmaParams
from llmc.codegen.cuda.nvrtc import TEMPLATES
from llmc.codegen.cuda.rms_norm import RmsNormParams
from llmc.emulator.build import HostCompiler, build_twin
from llmc.emulator.session import Argument, DeviceArray, Emulator, Kernel, Schedule

# Rewrites n two-byte words of p with themselves.
TOUCH = """#include "device.cuh"
LLMC_KERNEL(32, 1) touch(unsigned short* p, int n, int zero) {
  grid_wait();
  for (int i = threadIdx.x; i < n; i += 32) p[i] ^= zero;
}
LLMC_EXPORT(touch)
"""

Shape = Mapping[str, int | str | tuple[int, ...]]


class Wrong(AssertionError):
    """A kernel's result lies outside the format's tolerance."""


def compare(what: str, got: np.ndarray, want: Expected) -> None:
    error = np.abs(got.astype(np.float64) - want.value)
    bad = ~(error <= want.tolerance)  # NaN is bad
    if bad.any():
        i = tuple(int(x) for x in np.argwhere(bad)[0])
        raise Wrong(
            f"{what}: {bad.sum()} of {bad.size} values wrong, first at {i}: got {float(got[i])}, "
            f"expected {want.value[i]:.6g} +- {want.tolerance[i]:.2g}"
        )


@dataclass
class Lab:
    """An emulator with the twins of kernels. `headers` overrides the folder of .cuh files (mutants)."""

    checked: bool = True
    compiler: HostCompiler = field(default_factory=HostCompiler.default)
    headers: Path = TEMPLATES
    emulator: Emulator = field(default_factory=Emulator)
    _kernels: dict[tuple[str, str, bool, str], Kernel] = field(default_factory=dict)
    _arrays: list[DeviceArray] = field(default_factory=list)
    _inputs: list[DeviceArray] = field(default_factory=list)

    def launch(
        self,
        params: KernelParams,
        grid: tuple[int, ...],
        *args: Argument,
        suffix: str = "",
        block: int = 0,
        smem_bytes: int | None = None,
    ) -> None:
        """Launches on top of a kernel that rewrites every input, as its programmatic dependent: what the
        kernel
        reads before its grid_wait is a race."""
        touch = self._touch()
        for i, a in enumerate(self._inputs):  # a chain: the kernel is a dependent of each of them
            touch((1,), 32, 0, a, a.nbytes // 2, 0, programmatic=i > 0, wait=False)
        smem = params.smem_bytes if smem_bytes is None else smem_bytes
        self.kernel(params, suffix)(grid, block or params.threads, smem, *args, programmatic=True)

    def _touch(self) -> Kernel:
        key = ("touch", "", self.checked, self.compiler.name)
        if key not in self._kernels:
            twin = build_twin(TOUCH, [TEMPLATES], checked=self.checked, name="touch.cu", compiler=self.compiler)
            self._kernels[key] = self.emulator.kernel(twin, "touch")
        return self._kernels[key]

    def kernel(self, params: KernelParams, suffix: str = "") -> Kernel:
        symbol = "kernel"
        key = (repr(params), suffix, self.checked, str(self.headers) + self.compiler.name)
        if key not in self._kernels:
            name = f"{params.template}.cu"
            twin = build_twin(
                render(params, symbol),
                [self.headers],
                checked=self.checked,
                name=name,
                compiler=self.compiler,
            )
            self._kernels[key] = self.emulator.kernel(twin, symbol + suffix)
        return self._kernels[key]

    def array(self, values: np.ndarray) -> DeviceArray:
        self._arrays.append(self.emulator.array(values))
        self._inputs.append(self._arrays[-1])
        return self._arrays[-1]

    def constant(self, values: np.ndarray) -> DeviceArray:
        """An array that no kernel writes (weights): it may be read before grid_wait."""
        self._arrays.append(self.emulator.array(values))
        return self._arrays[-1]

    def empty(self, shape: tuple[int, ...], dtype: type = bfloat16) -> DeviceArray:
        self._arrays.append(self.emulator.empty(shape, dtype))
        return self._arrays[-1]

    @contextmanager
    def case(self, schedule: Schedule) -> Iterator[None]:
        """Launches under a schedule; afterwards every array of theirs is gone."""
        self.emulator.set_checked(self.checked)
        self.emulator.set_schedule(schedule)
        try:
            yield
        finally:
            self.emulator.reset()
            for a in self._arrays:
                a.free()
            self._arrays.clear()
            self._inputs.clear()

    def run(self, params: KernelParams, shape: Shape, schedule: Schedule, seed: int = 0) -> None:
        """One case: raises Wrong, or CudaError with the emulator's report."""
        with self.case(schedule):
            RUNNERS[type(params)](self, params, shape, np.random.default_rng(seed))


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(bfloat16)


def _rms_norm(lab: Lab, p: RmsNormParams, shape: Shape, rng: np.random.Generator) -> None:
    rows = shape["rows"]
    x, r, w = normal(rng, rows, p.hidden), normal(rng, rows, p.hidden), normal(rng, p.hidden)
    dx, dr, dw, dy = lab.array(x), lab.array(r), lab.array(w), lab.empty((rows, p.hidden))
    lab.launch(p, (rows,), dx, dr if p.add_residual else _null(dr), dw, dy, 1e-5)
    want, stream = references.rms_norm(x, r if p.add_residual else None, w, 1e-5)
    compare("rms_norm", dy.numpy(), want)
    if p.add_residual and not np.array_equal(dr.numpy(), stream):
        raise Wrong("rms_norm: the residual stream differs from bf16(x + residual)")


def _null(like: DeviceArray) -> DeviceArray:
    return DeviceArray(like._emulator, 0, (), like.dtype)


@dataclass(frozen=True)
class GemmData:
    a: np.ndarray
    w: np.ndarray
    bias: np.ndarray
    residual: np.ndarray
    M: int
    N: int
    K: int

    @staticmethod
    def make(shape: Shape, rng: np.random.Generator) -> GemmData:
        M, N, K = shape["M"], shape["N"], shape["K"]
        return GemmData(normal(rng, M, K), normal(rng, N, K, scale=K**-0.5), normal(rng, N), normal(rng, M, N), M, N, K)

    def device(self, lab: Lab, e: Epilogue) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """bias, residual, out. The residual is updated in place: out is its buffer."""
        out = lab.empty((self.M, self.N // 2 if e is Epilogue.SWIGLU else self.N))
        bias = lab.array(self.bias) if e.has_bias else _null(out)
        if e.has_residual:
            out = lab.array(self.residual)
        return bias, out if e.has_residual else _null(out), out

    def compare(self, what: str, out: DeviceArray, e: Epilogue) -> None:
        compare(what, out.numpy(), references.gemm(self.a, self.w, self.bias, self.residual, e))


def _gemm(lab: Lab, p: GemmParams, shape: Shape, rng: np.random.Generator) -> None:
    d = GemmData.make(shape, rng)
    bias, residual, out = d.device(lab, p.epilogue)
    grid = (-(-d.N // p.block_n), -(-d.M // p.block_m))
    lab.launch(p, grid, lab.array(d.a), lab.array(d.w), bias, residual, out, d.M, d.N, d.K)
    d.compare("gemm", out, p.epilogue)


def _gemm_hopper(lab: Lab, p: HopperGemmParams, shape: Shape, rng: np.random.Generator) -> None:
    d = GemmData.make(shape, rng)
    bias, residual, out = d.device(lab, p.epilogue)
    a, w = lab.array(d.a), lab.array(d.w)
    ta, tw = lab.emulator.tensor_map(a, (128, 64), 128), lab.emulator.tensor_map(w, (p.block_n, 64), 128)
    grid = (-(-d.N // p.block_n), -(-d.M // 128))
    lab.launch(p, grid, ta, tw, bias, residual, out, d.M, d.N, d.K)
    d.compare("gemm_hopper", out, p.epilogue)


def _skinny_gemm(lab: Lab, p: SkinnyGemmParams, shape: Shape, rng: np.random.Generator) -> None:
    d = GemmData.make(shape, rng)
    bias, residual, out = d.device(lab, p.epilogue)
    tiles = -(-d.N // 32)
    workspace = lab.empty((p.splits, d.M, d.N), np.float32)
    counters = lab.array(np.zeros(tiles, np.uint32))
    partials = (workspace, counters) if p.splits > 1 else (_null(workspace), _null(counters))
    lab.launch(p, (tiles, p.splits), lab.array(d.a), lab.array(d.w), bias, residual, out, *partials, d.M, d.N, d.K)
    d.compare("skinny_gemm", out, p.epilogue)
    if p.splits > 1 and counters.numpy().any():
        raise Wrong("skinny_gemm: the counters are not zero again")


def paged(rng: np.random.Generator, lens: tuple[int, ...], kv_heads: int, page: int, d: int) -> tuple[np.ndarray, ...]:
    """k, v caches [pages, Hkv, page, D], a shuffled table [B, max_pages], and the dense k, v per sequence.
    Slots behind a sequence's end hold NaN: nobody may read them into a result."""
    max_pages = max(-(-n // page) for n in lens)
    pages = len(lens) * max_pages + 1
    table = rng.permutation(pages)[: len(lens) * max_pages].astype(np.int32).reshape(len(lens), max_pages)
    caches, dense = [], []
    for _ in range(2):
        cache = np.full((pages, kv_heads, page, d), np.nan, bfloat16)
        rows = []
        for b, n in enumerate(lens):
            x = normal(rng, n, kv_heads, d)
            for t in range(n):
                cache[table[b, t // page], :, t % page] = x[t]
            rows.append(x)
        caches.append(cache)
        dense.append(rows)
    return caches[0], caches[1], table, dense[0], dense[1]


def _attention_decode(lab: Lab, p: DecodeAttentionParams, shape: Shape, rng: np.random.Generator) -> None:
    lens, kv_heads = shape["lens"], shape["kv_heads"]
    heads, batch = kv_heads * p.group, len(lens)
    k, v, table, dense_k, dense_v = paged(rng, lens, kv_heads, p.page, p.head_dim)
    q = normal(rng, batch, heads, p.head_dim)
    splits = -(-max(lens) // p.split)
    o, ml = (
        lab.empty((batch, heads, splits, p.head_dim), np.float32),
        lab.empty((batch, heads, splits, 2), np.float32),
    )
    dlen, out = lab.array(np.array(lens, np.int32)), lab.empty((batch, heads, p.head_dim))
    scale = p.head_dim**-0.5
    lab.launch(
        p,
        (splits, kv_heads, batch),
        lab.array(q),
        lab.array(k),
        lab.array(v),
        lab.array(table),
        dlen,
        o,
        ml,
        kv_heads,
        table.shape[1],
        scale * math.log2(math.e),
    )
    lab.launch(p, (heads, batch), o, ml, dlen, out, splits, suffix="__combine", block=p.head_dim, smem_bytes=0)
    got = out.numpy()
    for b in range(batch):
        compare(
            f"attention_decode[{b}]",
            got[b : b + 1],
            references.attention(q[b : b + 1], dense_k[b], dense_v[b], scale),
        )


def _attention_prefill(lab: Lab, p: PrefillAttentionParams, shape: Shape, rng: np.random.Generator) -> None:
    lens, rows, kv_heads = shape["lens"], shape["rows"], shape["kv_heads"]
    heads = kv_heads * p.group
    k, v, table, dense_k, dense_v = paged(rng, lens, kv_heads, p.page, p.head_dim)
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    q = normal(rng, int(starts[-1]), heads, p.head_dim)
    out = lab.empty(q.shape)
    scale = p.head_dim**-0.5
    grid = (max(1, -(-max(rows) // 64)), heads, len(lens))
    lab.launch(
        p,
        grid,
        lab.array(q),
        lab.array(k),
        lab.array(v),
        lab.array(starts),
        lab.array(table),
        lab.array(np.array(lens, np.int32)),
        out,
        kv_heads,
        table.shape[1],
        scale * math.log2(math.e),
    )
    got = out.numpy()
    for b in range(len(lens)):
        part = slice(int(starts[b]), int(starts[b + 1]))
        compare(f"attention_prefill[{b}]", got[part], references.attention(q[part], dense_k[b], dense_v[b], scale))


def _rope_append(lab: Lab, p: RopeAppendParams, shape: Shape, rng: np.random.Generator) -> None:
    tokens, heads, kv_heads = shape["tokens"], shape["heads"], shape["kv_heads"]
    d, half = p.head_dim, p.head_dim // 2
    qkv = normal(rng, tokens, heads + 2 * kv_heads, d)
    position = rng.integers(0, 100, tokens).astype(np.int32)
    pages = -(-tokens // p.page) + 1
    slot = rng.permutation(pages * p.page)[:tokens].astype(np.int32)
    angle = np.arange(100)[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    q = lab.empty((tokens, heads, d))
    caches = [lab.array(np.zeros((pages, kv_heads, p.page, d), bfloat16)) for _ in range(2)]
    lab.launch(
        p,
        (heads + 2 * kv_heads, tokens),
        lab.array(qkv),
        lab.array(cos),
        lab.array(sin),
        lab.array(position),
        lab.array(slot),
        q,
        *caches,
        heads,
        kv_heads,
    )
    x = references.f64(qkv)
    c, s = (references.f64(y)[position][:, None] for y in (cos, sin))
    turned = np.concatenate([x[..., :half] * c - x[..., half:] * s, x[..., half:] * c + x[..., :half] * s], -1)
    slack = (np.abs(x[..., :half]) + np.abs(x[..., half:])) * references.F32_SUM
    tol = np.abs(turned) * references.BF16_STEP + np.concatenate([slack, slack], -1)
    compare("rope q", q.numpy(), Expected(turned[:, :heads], tol[:, :heads]))
    k, v = (y.numpy() for y in caches)
    at = (slot // p.page, slice(None), slot % p.page)
    compare("rope k", k[at], Expected(turned[:, heads:-kv_heads], tol[:, heads:-kv_heads]))
    if not np.array_equal(v[at], qkv[:, -kv_heads:]):
        raise Wrong("rope_append: values were changed")


RUNNERS: dict[type, Callable[..., None]] = {
    RmsNormParams: _rms_norm,
    GemmParams: _gemm,
    HopperGemmParams: _gemm_hopper,
    SkinnyGemmParams: _skinny_gemm,
    DecodeAttentionParams: _attention_decode,
    PrefillAttentionParams: _attention_prefill,
    RopeAppendParams: _rope_append,
    LinearMmaParams: linear_cases.run,
    LinearWgmmaParams: linear_cases.run,
}
