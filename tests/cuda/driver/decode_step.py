"""A decode step of SmolLM2-135M's shapes with random weights, as one CUDA graph, through cuda-python.

decode_step.py FOLDER [steps]        prints one JSON line: nodes, seconds per step, error against numpy
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from cuda.bindings import driver as cu
from ml_dtypes import bfloat16

from llmc.codegen.cuda.arguments import (
    COUNTS,
    Input,
    KernelArgument,
    Number,
    Operand,
    Output,
    Part,
    Slot,
    StepArray,
    Whole,
)
from llmc.codegen.cuda.attention.forms import attention_forms, numbers_of
from llmc.codegen.cuda.attention.layer import SPLITS_SCRATCH
from llmc.codegen.cuda.kernel import KernelParams, symbol_of
from llmc.codegen.cuda.linear.params import COUNTERS, PARTIALS, LinearParams
from llmc.codegen.cuda.linear.variants import variants
from llmc.codegen.cuda.plan.kv import KV_BLOCK, CudaKvSlot
from llmc.codegen.cuda.target.capabilities import TARGETS
from llmc.codegen.cuda.target.gpus import GPUS
from llmc.ir.dims import sym
from llmc.ir.ops.attention import PagedAttention
from llmc.ir.ops.kernel import GATE_RUN
from llmc.ir.types import DType, tensor
from llmc.runtime.cuda.graph.tensor_maps import encode_tensor_map
from llmc.runtime.cuda.plan import Sizes
from tests.cuda.driver.cuda_calls import Long, Ptr, add_node, alloc, context, download, load, ok, upload
from tests.cuda.kernels.linear_cases import CASES
from tests.cuda.kernels.rows_examples import kernel, queries_keys_values, rms_norm_bf16

LAYERS, HIDDEN, INTER, VOCAB, HEADS, KV_HEADS, D, CONTEXT = 30, 576, 1536, 49152, 9, 3, 64, 100
EPS, SCALE = 1e-5, D**-0.5
NORM = kernel(rms_norm_bf16(HIDDEN))
ROPE_BODY = queries_keys_values(HEADS, KV_HEADS, D, norms=False)  # as the passes leave it of a Llama
ROPE = kernel(ROPE_BODY)
QKV = (HEADS + 2 * KV_HEADS) * D


def _decode(case: str, n: int, k: int) -> LinearParams:
    """The kernel of the smallest bucket."""
    return variants(CASES[case].op(n), n, k, GPUS["h100"])[0].params


QKV_LINEAR, O_LINEAR = _decode("plain", QKV, HIDDEN), _decode("bf16_residual", HIDDEN, HEADS * D)
GATE_UP, DOWN = _decode("swiglu", INTER, HIDDEN), _decode("bf16_residual", HIDDEN, INTER)
HEAD = _decode("plain", VOCAB, HIDDEN)
LINEARS = (QKV_LINEAR, O_LINEAR, GATE_UP, DOWN, HEAD)
SLOT = CudaKvSlot(KV_HEADS, D, D, DType.BF16, 0)
ATTENTION_OP = PagedAttention(0, SCALE, KV_HEADS, D, result=DType.BF16, joined=True)
ATTENTION = attention_forms(
    ATTENTION_OP,
    tensor(DType.BF16, sym("T"), HEADS, D),
    SLOT,
    TARGETS["sm_90a"],
).decode
SIZES = Sizes(tokens=1, rows=1, seqs=1, length=CONTEXT + 1)
KERNELS: list[KernelParams] = [NORM, ROPE, *LINEARS, *ATTENTION]


def bf(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(bfloat16)


def weights(rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    def w(*shape: int) -> np.ndarray:
        return bf(rng.standard_normal(shape, dtype=np.float32) * shape[-1] ** -0.5)

    blocks = -(-(CONTEXT + 1) // KV_BLOCK)
    return [
        {
            "n1": bf(1 + 0.1 * rng.standard_normal(HIDDEN)),
            "qkv": w(QKV, HIDDEN),
            "o": w(HIDDEN, HEADS * D),
            "n2": bf(1 + 0.1 * rng.standard_normal(HIDDEN)),
            "gate_up": w(2 * INTER, HIDDEN),
            "down": w(HIDDEN, INTER),
            "kv": bf(rng.standard_normal((blocks, 2, KV_HEADS, KV_BLOCK, D))),
        }
        for _ in range(LAYERS)
    ]


def reference(x: np.ndarray, layers: list[dict[str, np.ndarray]], final: np.ndarray, head: np.ndarray) -> np.ndarray:
    """float32, rounded to bf16 wherever a kernel rounds: what it stores, and the weights of values."""

    def norm(h: np.ndarray, w: np.ndarray) -> np.ndarray:
        h = h.astype(np.float32)
        return bf(h / np.sqrt((h**2).mean() + EPS) * w.astype(np.float32))

    def dot(w: np.ndarray, h: np.ndarray) -> np.ndarray:
        return w.astype(np.float32) @ h.astype(np.float32)

    angle = CONTEXT * 10000.0 ** (-np.arange(D // 2) / (D // 2))
    c, s = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def rope(y: np.ndarray) -> np.ndarray:
        a, b = y[:, : D // 2], y[:, D // 2 :]
        return bf(np.concatenate([a * c - b * s, b * c + a * s], -1))

    h = x
    for w in layers:
        qkv = dot(w["qkv"], norm(h, w["n1"])).reshape(-1, D)
        q, k, v = rope(qkv[:HEADS]), rope(qkv[HEADS : HEADS + KV_HEADS]), bf(qkv[HEADS + KV_HEADS :])
        out = []
        for i in range(HEADS):
            g = i // (HEADS // KV_HEADS)
            keys = np.concatenate([w["kv"][:, 0, g].reshape(-1, D)[:CONTEXT], k[g : g + 1]]).astype(np.float32)
            values = np.concatenate([w["kv"][:, 1, g].reshape(-1, D)[:CONTEXT], v[g : g + 1]]).astype(np.float32)
            p = keys @ q[i].astype(np.float32) * SCALE
            p = np.exp(p - p.max())
            out.append(bf(p).astype(np.float32) @ values / p.sum())
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
    blocks = layers[0]["kv"].shape[0]
    half = np.arange(D // 2) / (D // 2)
    angle = CONTEXT * 10000.0**-half
    cos, sin = Ptr(upload(np.cos(angle).astype(np.float32))), Ptr(upload(np.sin(angle).astype(np.float32)))
    tables, starts = (Ptr(upload(np.array(v, np.int32))) for v in (range(blocks), [0, 1]))
    position, seq = Ptr(upload(np.array([CONTEXT], np.int32))), Ptr(upload(np.zeros(1, np.int32)))
    x, a, q, att, act = (Ptr(alloc(2 * n)) for n in (HIDDEN, HIDDEN, HEADS * D, HEADS * D, INTER))
    qkv, logits = (Ptr(alloc(4 * n)) for n in (QKV, VOCAB))
    scratch = Ptr(alloc(ATTENTION[0].layer.scratch.at(SIZES)))
    graph, nodes = ok(cu.cuGraphCreate(0)), 0
    last: list[object] = []

    def add(function: object, grid: tuple[int, ...], block: int, smem: int, *args: object) -> None:
        nonlocal last, nodes
        last, nodes = [add_node(graph, last, function, grid, block, smem, args)], nodes + 1

    counts = Ptr(upload(np.array([1, 1, 1, blocks], np.int32)))
    workspace = Ptr(alloc(max([16, *(p.workspace_bytes(1) for p in LINEARS)])))
    counters = Ptr(upload(np.zeros(max([1, *(p.num_counters(1) for p in LINEARS)]), np.uint32)))

    def linear(p: LinearParams, inp: Ptr, w: np.ndarray, out: Ptr) -> None:
        """The residual is the result's own buffer."""
        given = {
            Input(0): inp,
            Input(1): Ptr(upload(w)),
            COUNTS: counts,
            Input(2): out,
            Output(): out,
            PARTIALS: workspace,
            COUNTERS: counters,
        }

        def value(argument: KernelArgument) -> object:
            pointer, box = given[argument.operand], argument.box
            return pointer if box is None else encode_tensor_map(pointer, box, box.rows or 1)

        add(f[p], p.grid(1), p.threads, p.smem_bytes, *map(value, p.arguments))

    def of_slot(pool: Ptr) -> dict[Operand, object]:
        """Each layer has a pool of its own."""
        return {
            Slot(Part.POOL): pool,
            Slot(Part.BLOCK_BYTES): Long(SLOT.num_bytes),
            Slot(Part.OFFSET): Long(SLOT.offset),
            Slot(Part.TABLES): tables,
        }

    def attention(pool: Ptr) -> None:
        given: dict[Operand, object] = {
            **of_slot(pool),
            **{Number(name): number for name, number in numbers_of(ATTENTION_OP).items()},
            COUNTS: counts,
            StepArray("positions"): position,
            StepArray("seq_starts"): starts,
            Input(1): q,
            Output(): att,
            SPLITS_SCRATCH: scratch,
            Whole(ATTENTION[0].layer.seen_splits): ATTENTION[0].layer.seen_splits.at(SIZES),
        }
        for p in ATTENTION:
            grid = tuple(extent.at(SIZES) for extent in p.grid)
            add(f[p], grid, p.threads, p.smem_bytes, *(given[argument.operand] for argument in p.arguments))

    def write_keys_values(pool: Ptr) -> None:
        """q = the turned queries; turned keys, and values, go to their place in the pool."""
        named = {"qkv": qkv, "cos": cos, "sin": sin, "positions": position, "seqs": seq}
        inputs: dict[Operand, object] = {Input(i): named.get(value.name) for i, value in enumerate(ROPE_BODY.inputs)}
        given: dict[Operand, object] = {**of_slot(pool), **inputs, Output(): q, COUNTS: counts}
        arguments = [given[argument.operand] for argument in ROPE.arguments]
        add(f[ROPE], ROPE.grid(1), ROPE.threads, ROPE.smem_bytes, *arguments)

    def norm(w: np.ndarray) -> None:
        """a = the rounded norm of the residual stream."""
        add(f[NORM], NORM.grid(1), NORM.threads, NORM.smem_bytes, x, Ptr(upload(w.astype(np.float32))), a, counts)

    for w in layers:
        pool = Ptr(upload(w["kv"]))
        norm(w["n1"])
        linear(QKV_LINEAR, a, w["qkv"], qkv)
        write_keys_values(pool)
        attention(pool)
        linear(O_LINEAR, att, w["o"], x)
        norm(w["n2"])
        linear(GATE_UP, a, w["gate_up"], act)
        linear(DOWN, act, w["down"], x)
    norm(final)
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
