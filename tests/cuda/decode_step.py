"""A decode step of SmolLM2-135M's shapes with random weights, as one CUDA graph, through cuda-python.

decode_step.py FOLDER [steps]        prints one JSON line: nodes, seconds per step, error against numpy
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import numpy as np
from cuda.bindings import driver as cu
from cuda_calls import Ptr, add_node, alloc, context, download, load, matrix_map, ok, upload
from linear_cases import CASES
from ml_dtypes import bfloat16

from llmc.codegen.cuda.attention import DecodeAttentionParams, RopeAppendParams
from llmc.codegen.cuda.gpus import GPUS
from llmc.codegen.cuda.kernel import KernelParams, symbol_of
from llmc.codegen.cuda.linear import variants
from llmc.codegen.cuda.linear_params import ArgumentKind, LinearParams
from llmc.codegen.cuda.rms_norm import RmsNormParams
from llmc.compiler.ir.ops.kernel import GATE_RUN

LAYERS, HIDDEN, INTER, VOCAB, HEADS, KV_HEADS, D, PAGE, CONTEXT = 30, 576, 1536, 49152, 9, 3, 64, 16, 100
EPS, SCALE = 1e-5, D**-0.5
NORM = RmsNormParams(HIDDEN, 128, False)
QKV = (HEADS + 2 * KV_HEADS) * D


def _decode(case: str, n: int, k: int) -> LinearParams:
    """The kernel of the smallest bucket."""
    return variants(CASES[case].op(n), n, k, GPUS["h100"])[0].params


QKV_LINEAR, O_LINEAR = _decode("bf16", QKV, HIDDEN), _decode("bf16_residual", HIDDEN, HEADS * D)
GATE_UP, DOWN = _decode("swiglu", INTER, HIDDEN), _decode("bf16_residual", HIDDEN, INTER)
HEAD = _decode("plain", VOCAB, HIDDEN)
LINEARS = (QKV_LINEAR, O_LINEAR, GATE_UP, DOWN, HEAD)
ATTENTION, ROPE = DecodeAttentionParams(D, HEADS // KV_HEADS, PAGE, 256), RopeAppendParams(D, PAGE)
KERNELS: list[KernelParams] = [NORM, *LINEARS, ATTENTION, ROPE]


def bf(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(bfloat16)


def weights(rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    def w(*shape: int) -> np.ndarray:
        return bf(rng.standard_normal(shape, dtype=np.float32) * shape[-1] ** -0.5)

    pages = -(-(CONTEXT + 1) // PAGE)
    return [
        {
            "n1": bf(1 + 0.1 * rng.standard_normal(HIDDEN)),
            "qkv": w(QKV, HIDDEN),
            "o": w(HIDDEN, HEADS * D),
            "n2": bf(1 + 0.1 * rng.standard_normal(HIDDEN)),
            "gate_up": w(2 * INTER, HIDDEN),
            "down": w(HIDDEN, INTER),
            "k": bf(rng.standard_normal((pages, KV_HEADS, PAGE, D))),
            "v": bf(rng.standard_normal((pages, KV_HEADS, PAGE, D))),
        }
        for _ in range(LAYERS)
    ]


def reference(x: np.ndarray, layers: list[dict[str, np.ndarray]], final: np.ndarray, head: np.ndarray) -> np.ndarray:
    """float32, rounded to bf16 wherever a kernel stores."""

    def norm(h: np.ndarray, w: np.ndarray) -> np.ndarray:
        h = h.astype(np.float32)
        return bf(h / np.sqrt((h**2).mean() + EPS) * w.astype(np.float32))

    def dot(w: np.ndarray, h: np.ndarray) -> np.ndarray:
        return w.astype(np.float32) @ h.astype(np.float32)

    angle = CONTEXT * 10000.0 ** (-np.arange(D // 2) / (D // 2))
    c, s = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def rope(y: np.ndarray) -> np.ndarray:
        a, b = y[:, : D // 2].astype(np.float32), y[:, D // 2 :].astype(np.float32)
        return bf(np.concatenate([a * c - b * s, b * c + a * s], -1))

    h = x
    for w in layers:
        qkv = bf(dot(w["qkv"], norm(h, w["n1"]))).reshape(-1, D)
        q, k, v = rope(qkv[:HEADS]), rope(qkv[HEADS : HEADS + KV_HEADS]), qkv[HEADS + KV_HEADS :]
        out = []
        for i in range(HEADS):
            g = i // (HEADS // KV_HEADS)
            keys = np.concatenate([w["k"][:, g].reshape(-1, D)[:CONTEXT], k[g : g + 1]]).astype(np.float32)
            values = np.concatenate([w["v"][:, g].reshape(-1, D)[:CONTEXT], v[g : g + 1]]).astype(np.float32)
            p = keys @ q[i].astype(np.float32) * SCALE
            p = np.exp(p - p.max())
            out.append(p @ values / p.sum())
        h = bf(dot(w["o"], bf(np.concatenate(out))) + h.astype(np.float32))
        y = dot(w["gate_up"], norm(h, w["n2"])).reshape(-1, 2, GATE_RUN)
        gate, up = y[:, 0].reshape(-1), y[:, 1].reshape(-1)
        h = bf(dot(w["down"], bf(gate / (1 + np.exp(-gate)) * up)) + h.astype(np.float32))
    return dot(head, norm(h, final))


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    rng = np.random.default_rng(0)
    layers, x0 = weights(rng), bf(rng.standard_normal(HIDDEN))
    final = bf(np.ones(HIDDEN))
    head = bf(rng.standard_normal((VOCAB, HIDDEN), dtype=np.float32) * HIDDEN**-0.5)
    context()
    f = {p: load(folder, symbol_of(p), smem=p.smem_bytes) for p in KERNELS}
    combine = load(folder, symbol_of(ATTENTION), symbol_of(ATTENTION) + "__combine")
    pages, splits = layers[0]["k"].shape[0], 1
    half = np.arange(D // 2) / (D // 2)
    angle = np.arange(CONTEXT + 1)[:, None] * 10000.0**-half
    cos, sin = Ptr(upload(np.cos(angle).astype(np.float32))), Ptr(upload(np.sin(angle).astype(np.float32)))
    table, length = (
        Ptr(upload(np.arange(pages, dtype=np.int32))),
        Ptr(upload(np.array([CONTEXT + 1], np.int32))),
    )
    position, slot = (Ptr(upload(np.array([CONTEXT], np.int32))) for _ in range(2))
    x, a, qkv, q, act = (Ptr(alloc(2 * n)) for n in (HIDDEN, HIDDEN, QKV, HEADS * D, INTER))
    att, logits = Ptr(alloc(2 * HEADS * D)), Ptr(alloc(4 * VOCAB))
    o, ml = Ptr(alloc(4 * HEADS * splits * D)), Ptr(alloc(8 * HEADS * splits))
    null = Ptr(0)
    graph, last, nodes = ok(cu.cuGraphCreate(0)), [], 0

    def add(function: object, grid: tuple[int, ...], block: int, smem: int, *args: object) -> None:
        nonlocal last, nodes
        last, nodes = [add_node(graph, last, function, grid, block, smem, args)], nodes + 1

    counts = Ptr(upload(np.array([1, 1, 1, 0], np.int32)))
    workspace = Ptr(alloc(max([16, *(p.workspace_bytes(1) for p in LINEARS)])))
    counters = Ptr(upload(np.zeros(max([1, *(p.num_counters(1) for p in LINEARS)]), np.uint32)))

    def linear(p: LinearParams, inp: Ptr, w: np.ndarray, out: Ptr) -> None:
        """The residual is the result's own buffer."""
        weight = Ptr(upload(w))
        given = {
            ArgumentKind.X: inp,
            ArgumentKind.WEIGHT: weight,
            ArgumentKind.COUNTS: counts,
            ArgumentKind.EXTRA: out,
            ArgumentKind.OUT: out,
            ArgumentKind.WORKSPACE: workspace,
            ArgumentKind.COUNTERS: counters,
        }
        rows = {ArgumentKind.X: 1, ArgumentKind.WEIGHT: p.shape.weight_rows}
        args = [
            given[a.kind] if a.box is None else matrix_map(given[a.kind], rows[a.kind], p.shape.k, p.row_bytes, a.box)
            for a in p.arguments
        ]
        add(f[p], p.grid(1), p.threads, p.smem_bytes, *args)

    for w in layers:
        k_cache, v_cache = Ptr(upload(w["k"])), Ptr(upload(w["v"]))
        add(f[NORM], (1,), NORM.threads, NORM.smem_bytes, x, null, Ptr(upload(w["n1"])), a, EPS)
        linear(QKV_LINEAR, a, w["qkv"], qkv)
        add(
            f[ROPE],
            (HEADS + 2 * KV_HEADS, 1),
            D // 2,
            0,
            qkv,
            cos,
            sin,
            position,
            slot,
            q,
            k_cache,
            v_cache,
            HEADS,
            KV_HEADS,
        )
        add(
            f[ATTENTION],
            (splits, KV_HEADS, 1),
            128,
            ATTENTION.smem_bytes,
            q,
            k_cache,
            v_cache,
            table,
            length,
            o,
            ml,
            KV_HEADS,
            pages,
            SCALE * math.log2(math.e),
        )
        add(combine, (HEADS, 1), D, 0, o, ml, length, att, splits)
        linear(O_LINEAR, att, w["o"], x)
        add(f[NORM], (1,), NORM.threads, NORM.smem_bytes, x, null, Ptr(upload(w["n2"])), a, EPS)
        linear(GATE_UP, a, w["gate_up"], act)
        linear(DOWN, act, w["down"], x)
    add(f[NORM], (1,), NORM.threads, NORM.smem_bytes, x, null, Ptr(upload(final)), a, EPS)
    linear(HEAD, a, head, logits)

    executable = ok(cu.cuGraphInstantiate(graph, 0))
    seconds, cpu = [], []
    for _ in range(steps):
        ok(cu.cuMemcpyHtoD(x, x0.ctypes.data, x0.nbytes))
        start, cpu_start = time.perf_counter(), time.process_time()
        ok(cu.cuGraphLaunch(executable, 0))
        ok(cu.cuStreamSynchronize(0))
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - cpu_start)
    got = download(logits, (VOCAB,), np.float32)
    want = reference(x0, layers, final, head)
    error = np.abs(got - want)
    print(
        json.dumps(
            {
                "nodes": nodes,
                "seconds": [round(s, 3) for s in seconds],
                "cpu_seconds": [round(s, 3) for s in cpu],
                "max_error": float(error.max()),
                "mean_error": float(error.mean()),
                "max_logit": float(np.abs(want).max()),
                "finite": bool(np.isfinite(got).all()),
                "argmax_equal": bool(got.argmax() == want.argmax()),
            }
        )
    )


if __name__ == "__main__":
    main()
