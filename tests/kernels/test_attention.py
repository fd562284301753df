"""Paged attention against float64, with a poisoned pool, in every chunking, batch and thread count."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from llmc.codegen.kv_groups import BLOCK_TOKENS
from llmc.codegen.packing import round_bf16, widen_bf16
from llmc.ir.formats import kv_numbers
from llmc.ir.quantise import quantise_input
from llmc.ir.types import DType
from tests.kernels.conftest import Kernels
from tests.kernels.test_linear import aligned, pointer, random

Floats = npt.NDArray[np.float32]


class Args(ctypes.Structure):
    """AttentionArgs of harness_attention.cpp."""

    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in ("q_heads", "kv_heads", "d", "dv", "window", "chunk", "num_seqs", "table_stride", "kind")
        ),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("sinks", "slopes", "seq_starts", "positions", "tables", "pool")),
        *((name, ctypes.c_int64) for name in ("block_bytes", "slot_offset", "max_seq_len")),
    )


@dataclass(frozen=True)
class Case:
    q_heads: int = 4
    kv_heads: int = 2
    d: int = 64
    dv: int = 64
    cache: DType = DType.BF16
    window: int = 0
    chunk: int = 0
    softcap: float = 0.0
    sinks: bool = False
    alibi: bool = False
    scale: float = 0.125

    def head_values(self, seed: int) -> Floats:
        return random(seed, self.q_heads)

    def slopes(self) -> Floats:
        return (2.0 ** -np.arange(1, self.q_heads + 1)).astype(np.float32)


CASES = {
    "plain": Case(),
    "f32": Case(cache=DType.F32),
    "one head each": Case(q_heads=3, kv_heads=3, d=48, dv=48),
    "many queries a head": Case(q_heads=8, kv_heads=1, d=32, dv=32),
    "odd dims": Case(q_heads=6, kv_heads=2, d=35, dv=19),
    "odd dims f32": Case(q_heads=6, kv_heads=2, d=35, dv=19, cache=DType.F32),
    "wide": Case(q_heads=4, kv_heads=1, d=256, dv=256),
    "window 8": Case(window=8),
    "window 300": Case(window=300),
    "chunk 40": Case(chunk=40),
    "window in chunks": Case(window=270, chunk=300),
    "softcap": Case(softcap=5.0, scale=1.0),
    "sinks": Case(sinks=True),
    "alibi": Case(alibi=True),
    "int8": Case(cache=DType.I8),
    "fp8": Case(cache=DType.F8_E4M3),
    "odd dims int8": Case(q_heads=6, kv_heads=2, d=35, dv=19, cache=DType.I8),
    "wide fp8": Case(q_heads=4, kv_heads=1, d=256, dv=256, cache=DType.F8_E4M3),
    "window 300 int8": Case(window=300, cache=DType.I8),
    "all fp8": Case(window=40, softcap=20.0, sinks=True, alibi=True, cache=DType.F8_E4M3),
    "all": Case(window=40, softcap=20.0, sinks=True, alibi=True, cache=DType.F32),
}


KINDS = (DType.F32, DType.BF16, DType.I8, DType.F8_E4M3)  # as harness_attention.cpp numbers them


def kept(cache: DType, x: Floats) -> Floats:
    """Heads [T, H, D] as the cache gives them back."""
    if cache is DType.BF16:
        return widen_bf16(round_bf16(x))
    if cache is DType.F32:
        return x
    rows = quantise_input(x.reshape(-1, x.shape[-1]), kv_numbers(cache))
    return rows.floats().astype(np.float32).reshape(x.shape)


def reference(case: Case, q: Floats, k: Floats, v: Floats) -> npt.NDArray[np.float64]:
    """q [T, q_heads, d], k [T, kv_heads, d], v [T, kv_heads, dv] of one sequence -> [T, q_heads, dv]."""
    k, v = kept(case.cache, k), kept(case.cache, v)
    group = case.q_heads // case.kv_heads
    at = np.arange(len(q))
    distance = at[None, :] - at[:, None]
    seen = distance <= 0
    if case.window:
        seen &= distance > -case.window
    if case.chunk:
        seen &= at[None, :] // case.chunk == at[:, None] // case.chunk
    out = np.empty((len(q), case.q_heads, case.dv))
    for h in range(case.q_heads):
        scores = q[:, h].astype(np.float64) @ k[:, h // group].astype(np.float64).T * case.scale
        if case.softcap:
            scores = case.softcap * np.tanh(scores / case.softcap)
        if case.alibi:
            scores = scores + case.slopes()[h] * distance
        scores = np.where(seen, scores, -np.inf)
        top = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - top)
        total = weights.sum(axis=1, keepdims=True)
        if case.sinks:
            total = total + np.exp(case.head_values(1)[h] - top)
        out[:, h] = weights / total @ v[:, h // group].astype(np.float64)
    return out


class Cache:
    """A pool of NaN in which sequences own shuffled blocks."""

    def __init__(self, kernels: Kernels, case: Case, lengths: list[int]) -> None:
        self.kernels, self.case, self.lengths = kernels, case, lengths
        self.stride = -(-max(lengths) // BLOCK_TOKENS)
        blocks = self.stride * len(lengths)
        order = np.random.default_rng(5).permutation(blocks + 3)[:blocks]
        self.tables = order.reshape(len(lengths), self.stride).astype(np.int32)
        self.pool, self.block_bytes, self.slot_offset = aligned(0), 0, 128
        args = self.args([])
        kernels.lib.slot_bytes.restype = ctypes.c_int64
        self.block_bytes = kernels.lib.slot_bytes(ctypes.byref(args)) + 192
        self.pool = aligned((blocks + 3) * self.block_bytes, 0xFF)

    def args(self, step: list[tuple[int, int, int]]) -> Args:
        case = self.case
        self.sinks = case.head_values(1) if case.sinks else None
        self.slopes = case.slopes() if case.alibi else None
        self.starts = np.cumsum([0, *(end - begin for _, begin, end in step)]).astype(np.int32)
        self.positions = np.concatenate([np.zeros(0, np.int32), *(np.arange(b, e, dtype=np.int32) for _, b, e in step)])
        self.step_tables = np.ascontiguousarray(self.tables[[s for s, _, _ in step]])
        arrays = (self.sinks, self.slopes, self.starts, self.positions, self.step_tables, self.pool)
        return Args(
            *(case.q_heads, case.kv_heads, case.d, case.dv, case.window, case.chunk),
            *(len(step), self.stride, KINDS.index(case.cache)),
            *(case.scale, case.softcap),
            *(None if a is None else a.ctypes.data for a in arrays),
            *(self.block_bytes, self.slot_offset, max(self.lengths)),
        )

    def run(
        self, step: list[tuple[int, int, int]], data: list[tuple[Floats, Floats, Floats]], threads: int
    ) -> list[Floats]:
        """step: (sequence, begin, end) token ranges. Returns the rows of each range."""
        args = self.args(step)
        q, k, v = (np.concatenate([data[s][i][b:e].reshape(e - b, -1) for s, b, e in step]) for i in range(3))
        out = np.full((len(q), self.case.q_heads * self.case.dv), np.nan, np.float32)
        assert not self.kernels.lib.run_attention(
            ctypes.byref(args), pointer(q), pointer(k), pointer(v), pointer(out), threads
        )
        return np.split(out, self.starts[1:-1])


def tokens(case: Case, seed: int, length: int) -> tuple[Floats, Floats, Floats]:
    return (
        random(seed, length, case.q_heads, case.d),
        random(seed + 1, length, case.kv_heads, case.d),
        random(seed + 2, length, case.kv_heads, case.dv),
    )


def prefill(kernels: Kernels, case: Case, data: tuple[Floats, Floats, Floats], threads: int = 1) -> Floats:
    length = len(data[0])
    return Cache(kernels, case, [length]).run([(0, 0, length)], [data], threads)[0]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("length", [1, 2, 31, 33, 100])
def test_matches_float64(kernels: Kernels, name: str, length: int) -> None:
    case = CASES[name]
    data = tokens(case, 10, length)
    expected = reference(case, *data).reshape(length, -1)
    assert np.max(np.abs(prefill(kernels, case, data) - expected)) < 1e-5


@pytest.mark.parametrize("name", ["plain", "f32", "window 300", "chunk 40", "window in chunks", "sinks", "alibi"])
def test_long_sequence_matches_float64(kernels: Kernels, name: str) -> None:
    """Several splits, and a window that ends inside of one."""
    case = CASES[name]
    data = tokens(case, 20, 700)
    expected = reference(case, *data).reshape(700, -1)
    assert np.max(np.abs(prefill(kernels, case, data, threads=2) - expected)) < 1e-5


@pytest.mark.parametrize("name", CASES)
def test_chunks_single_tokens_and_threads_give_the_same_bits(kernels: Kernels, name: str) -> None:
    case = CASES[name]
    length = 290
    data = tokens(case, 30, length)
    whole = prefill(kernels, case, data)
    assert np.isfinite(whole).all()
    rng = np.random.default_rng(6)
    for threads in (1, 2, 3):
        cache = Cache(kernels, case, [length])
        begin = 0
        while begin < length:
            size = int(rng.choice([1, 1, 2, 7, 40, 90]))
            end = min(length, begin + size)
            part = cache.run([(0, begin, end)], [data], threads)[0]
            assert np.array_equal(part, whole[begin:end]), f"tokens {begin}..{end}, {threads} threads"
            begin = end


@pytest.mark.parametrize("name", ["plain", "f32", "window 8", "chunk 40", "all"])
def test_company_does_not_matter(kernels: Kernels, name: str) -> None:
    """A chunk beside single tokens of other sequences gives what it gives alone."""
    case = CASES[name]
    lengths = [70, 300, 1, 33]
    data = [tokens(case, 40 + 10 * i, n) for i, n in enumerate(lengths)]
    alone = [prefill(kernels, case, d) for d in data]
    cache = Cache(kernels, case, lengths)
    cache.run([(1, 0, 299), (3, 0, 32)], data, 2)
    parts = cache.run([(1, 299, 300), (0, 0, 70), (2, 0, 1), (3, 32, 33)], data, 3)
    for part, expected in zip(parts, (alone[1][299:], alone[0], alone[2], alone[3][32:]), strict=True):
        assert np.array_equal(part, expected)


@pytest.mark.parametrize("cache", KINDS)
def test_later_tokens_cannot_leak(kernels: Kernels, cache: DType) -> None:
    """An infinite key or value of a later token of the same chunk leaves earlier rows alone, to the bit."""
    case = Case(cache=cache)
    q, k, v = tokens(case, 50, 40)
    clean = prefill(kernels, case, (q, k, v))
    k, v = k.copy(), v.copy()
    k[21], v[21] = np.inf, np.nan
    dirty = prefill(kernels, case, (q, k, v))
    assert np.array_equal(dirty[:21], clean[:21])
    assert np.isnan(dirty[21:]).all()
