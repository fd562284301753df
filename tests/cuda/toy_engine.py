"""An engine whose model is a toy in whole numbers, so that every order of its sums gives the same float: hand-written
kernels and plans for the runtime's CUDA side, and the same model in numpy.

A token's row is emb[id]; the cache holds row + position; attention is the sum over the cache of the positions so far;
logits are (attention + 2 * row) . head + bias of the id that is looked up twice, once through a TMA box.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from llmc.codegen.cuda.nvrtc import TEMPLATES, compile_cubin
from llmc.runtime.artifact import seal
from llmc.runtime.cuda.plan import (
    Arena,
    Argument,
    Box,
    Buffer,
    Extent,
    Factor,
    Launch,
    Plan,
    Scratch,
    Variant,
)
from llmc.runtime.manifest import (
    ArenaBytes,
    GenerationDefaults,
    KvLayout,
    KvSlot,
    Limits,
    Manifest,
    MemoryPlan,
    ModelSummary,
    SpecialTokens,
    TargetEntry,
)
from llmc.runtime.strict_json import render_json, to_plain

VOCAB, VALID, H, BLOCK, MAX_LEN, MAX_BATCH, MAX_TOKENS = 64, 60, 32, 4, 64, 6, 40
BLOCK_BYTES = BLOCK * H * 4

KERNELS = """#include "step.cuh"
// All: blocks of 32 threads, one per row of H = 32 values; rows beyond the counts return at once.
LLMC_KERNEL(32, 1) embed(const Counts* counts, const int* ids, const float* table, float* out) {
  if (int(blockIdx.x) >= counts->tokens) return;
  grid_launch_dependents();
  out[blockIdx.x * 32 + threadIdx.x] = table[ids[blockIdx.x] * 32 + threadIdx.x];
}
LLMC_EXPORT(embed)

LLMC_KERNEL(32, 1) append(const Counts* counts, const int* positions, const int* seqs, const int* table,
                          const float* rows, unsigned char* pool, long long block_bytes) {
  const int t = blockIdx.x;
  if (t >= counts->tokens) return;
  grid_wait();
  grid_launch_dependents();
  const int p = positions[t], block = table[seqs[t] * counts->table_stride + p / 4];
  float* slot = reinterpret_cast<float*>(pool + block * block_bytes) + p % 4 * 32;
  slot[threadIdx.x] = rows[t * 32 + threadIdx.x] + p;
}
LLMC_EXPORT(append)

LLMC_KERNEL(32, 1) attend(const Counts* counts, const int* positions, const int* seqs, const int* table,
                          const unsigned char* pool, long long block_bytes, float* out) {
  const int t = blockIdx.x;
  if (t >= counts->tokens) return;
  grid_wait();
  grid_launch_dependents();
  float sum = 0;
  for (int p = 0; p <= positions[t]; p++) {
    const int block = table[seqs[t] * counts->table_stride + p / 4];
    sum += reinterpret_cast<const float*>(pool + block * block_bytes)[p % 4 * 32 + threadIdx.x];
  }
  out[t * 32 + threadIdx.x] = sum;
}
LLMC_EXPORT(attend)

LLMC_KERNEL(32, 1) scale(const Counts* counts, const float* rows, float* out, float factor) {
  if (int(blockIdx.x) >= counts->tokens) return;
  grid_wait();
  grid_launch_dependents();
  out[blockIdx.x * 32 + threadIdx.x] = rows[blockIdx.x * 32 + threadIdx.x] * factor;
}
LLMC_EXPORT(scale)

LLMC_KERNEL(32, 1) mix(const Counts* counts, const int* rows, const float* a, const float* b, float* out) {
  if (int(blockIdx.x) >= counts->rows) return;
  grid_wait();
  grid_launch_dependents();
  const int at = rows[blockIdx.x] * 32 + threadIdx.x;
  out[blockIdx.x * 32 + threadIdx.x] = a[at] + b[at];
}
LLMC_EXPORT(mix)

// logits[r, v] = x[r] . head[v]; ROWS rows and 32 of the 64 columns per block. `done` counts blocks and ends at zero.
#define LLMC_HEAD(name, ROWS)                                                                                      \\
  LLMC_KERNEL(32, 1) name(const Counts* counts, const float* x, const float* head, float* logits, u32* done,       \\
                          int num_blocks) {                                                                        \\
    grid_wait();                                                                                                   \\
    grid_launch_dependents();                                                                                      \\
    const int v = blockIdx.x * 32 + threadIdx.x;                                                                   \\
    for (int r = blockIdx.y * ROWS; r < counts->rows && r < int(blockIdx.y + 1) * ROWS; r++) {                     \\
      float sum = 0;                                                                                               \\
      for (int k = 0; k < 32; k++) sum += x[r * 32 + k] * head[v * 32 + k];                                        \\
      logits[r * 64 + v] = sum;                                                                                    \\
    }                                                                                                              \\
    __syncwarp();                                                                                                  \\
    if (threadIdx.x == 0 && atomic_add(done, 1) == u32(num_blocks) - 1) atomic_exchange(done, 0);                  \\
  }                                                                                                                \\
  LLMC_EXPORT(name)
LLMC_HEAD(head_one, 1)
LLMC_HEAD(head_four, 4)

LLMC_KERNEL(32, 1) sample(const Counts* counts, const float* logits, int valid, int* tokens, float* logprob,
                          int* top_ids, float* top_logprobs) {
  const int r = blockIdx.x;
  if (r >= counts->rows || threadIdx.x) return;
  grid_wait();
  grid_launch_dependents();
  int last = -1;
  for (int i = 0; i < 3; i++) {  // ties to the lowest id
    int best = -1;
    for (int v = 0; v < valid; v++) {
      const float x = logits[r * 64 + v];
      if (last >= 0 && (x > logits[r * 64 + last] || (x == logits[r * 64 + last] && v <= last))) continue;
      if (best < 0 || x > logits[r * 64 + best]) best = v;
    }
    if (i == 0) tokens[r] = best, logprob[r] = logits[r * 64 + best];
    top_ids[r * 20 + i] = best, top_logprobs[r * 20 + i] = logits[r * 64 + best];
    last = best;
  }
}
LLMC_EXPORT(sample)

LLMC_KERNEL(32, 1) beyond(const Counts* counts, float* out) {
  store4(out + threadIdx.x + (1 << 20), 0u);
}
LLMC_EXPORT(beyond)
"""
TMA = """#include "step.cuh"
// logits[r, :] += bias, which a TMA box of 1 x 64 brings: one block of 64 threads per row.
LLMC_KERNEL(64, 1) add_bias(const Counts* counts, const __grid_constant__ TensorMap bias, float* logits) {
  LLMC_SMEM(smem);
  if (int(blockIdx.x) >= counts->rows) return;
  const u32 data = smem_addr(smem), bar = data + 256;
  if (threadIdx.x == 0) {
    mbar_init(bar, 1);
    mbar_fence_init();
    mbar_expect_tx(bar, 256);
    tma_load_2d(data, &bias, bar, 0, 0);
  }
  __syncthreads();
  mbar_wait(bar, 0);
  grid_wait();
  grid_launch_dependents();
  logits[blockIdx.x * 64 + threadIdx.x] += reinterpret_cast<const float*>(smem)[threadIdx.x];
}
LLMC_EXPORT(add_bias)
"""


@dataclass(frozen=True)
class Model:
    """Weights in small whole numbers."""

    embedding: np.ndarray  # [VOCAB, H]
    head: np.ndarray  # [VOCAB, H]
    bias: np.ndarray  # [VOCAB]

    @staticmethod
    def random(seed: int = 0) -> Model:
        rng = np.random.default_rng(seed)
        draw = lambda *shape: rng.integers(-3, 4, shape).astype(np.float32)  # noqa: E731
        return Model(draw(VOCAB, H), draw(VOCAB, H), draw(VOCAB))

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """[n, VOCAB] after each token."""
        rows = self.embedding[np.asarray(ids)]
        cache = rows + np.arange(len(ids), dtype=np.float32)[:, None]
        return (np.cumsum(cache, 0) + 2 * rows) @ self.head.T + self.bias

    def answer(self, ids: Sequence[int], count: int) -> list[int]:
        """Greedy, ties to the lowest id."""
        ids = list(ids)
        for _ in range(count):
            ids.append(int(self.logits(ids)[-1, :VALID].argmax()))
        return ids[-count:]


def _pointer(kind: str, name: str, box: Box | None = None) -> Argument:
    return Argument(kind, name, box=box)


COUNTS = _pointer("input", "counts")


def plan(entry: str, kv_group: str = "0", tma: bool = True) -> Plan:
    """Both entries launch the same kernels; rows of tokens are kept in the region of tokens, or of sampled rows."""
    region = "T" if entry == "prefill" else "R"
    per = {"T": 0, "R": 0}
    buffers: dict[str, Buffer] = {}
    for name, rows, width in (
        ("h", region, H),
        ("a", region, H),
        ("s", region, H),
        ("g", "R", H),
        ("logits", "R", VOCAB),
    ):
        buffers[name] = Buffer(name, f"f32[{rows}, {width}]", rows, width * 4, per[rows])
        per[rows] += width * 4
    tokens = Extent(1, (Factor("T", 1),))
    rows = Extent(1, (Factor("R", 1),))
    table, pool = _pointer("input", f"tables.{kv_group}"), _pointer("kv", kv_group)
    block_bytes = Argument("i64", value=BLOCK_BYTES)
    buffer = lambda name: _pointer("buffer", name)  # noqa: E731
    positions, seqs = _pointer("input", "positions"), _pointer("input", "seqs")
    launches: list[Launch] = []

    def add(op: str, after: tuple[int, ...], rows: str, *variants: Variant) -> int:
        launches.append(Launch(op, f"toy.{op}", (), (), (), after, rows, variants))
        return len(launches) - 1

    def one(kernel: str, grid: tuple[Extent, ...], *arguments: Argument, block: int = 32, shared: int = 0) -> Variant:
        return Variant(1 << 30, kernel, grid, block, shared, (COUNTS, *arguments), {})

    def head(kernel: str, up_to: int, step: int) -> Variant:
        grid = (Extent(2), Extent(1, (Factor("R", step),)))
        blocks = Extent(2, (Factor("R", step),))
        arguments = (COUNTS, buffer("g"), _pointer("weight", "head"), buffer("logits"), _pointer("scratch", "done"))
        extent = Argument("extent", extent=blocks)
        return Variant(up_to, kernel, grid, 32, 0, (*arguments, extent), {"done": Extent(4)})

    embed = add(
        "embed",
        (),
        "T",
        one("embed", (tokens,), _pointer("input", "ids"), _pointer("weight", "embedding"), buffer("h")),
    )
    append = add(
        "append", (embed,), "T", one("append", (tokens,), positions, seqs, table, buffer("h"), pool, block_bytes)
    )
    attend = add(
        "attend", (append,), "T", one("attend", (tokens,), positions, seqs, table, pool, block_bytes, buffer("a"))
    )
    scale = add("scale", (embed,), "T", one("scale", (tokens,), buffer("h"), buffer("s"), Argument("f32", value=2.0)))
    mix = add(
        "mix",
        (attend, scale),
        "R",
        one("mix", (rows,), _pointer("input", "rows"), buffer("a"), buffer("s"), buffer("g")),
    )
    last = add("head", (mix,), "R", head("head_one", 2, 1), head("head_four", 1 << 30, 4))
    if tma:
        box = Box("f32", 1, VOCAB, VOCAB * 4, 1, VOCAB, 0)
        bias = _pointer("weight", "bias", box)
        last = add("bias", (last,), "R", one("add_bias", (rows,), bias, buffer("logits"), block=64, shared=1024))
    outputs = [_pointer("output", name) for name in ("tokens", "logprob", "top_ids", "top_logprobs")]
    add("sample", (last,), "R", one("sample", (rows,), buffer("logits"), Argument("i32", value=VALID), *outputs))
    files = {v.kernel: "kernels/sm_90a/toy.cubin" for launch in launches for v in launch.variants}
    if tma:
        files["add_bias"] = "kernels/sm_90a/toy_tma.cubin"
    scratch = (Scratch("done", True),)
    return Plan(entry, Arena(per["T"], per["R"]), tuple(buffers.values()), scratch, files, tuple(launches), "logits")


def without_edge(whole: Plan, launch: int, before: int) -> Plan:
    """The plan without one of its edges."""
    launches = list(whole.launches)
    launches[launch] = replace(launches[launch], after=tuple(j for j in launches[launch].after if j != before))
    return replace(whole, launches=tuple(launches))


def target(**changes: object) -> TargetEntry:
    slots = (KvSlot("toy", 1, H, H, "f32", None),)
    fields: dict[str, object] = dict(
        kind="cuda",
        name="h100",
        arch="sm_90a",
        features=(),
        kernels="kernels/sm_90a",
        plans="plans/h100",
        kv=KvLayout(BLOCK, BLOCK_BYTES, H * 4, slots),
        memory=MemoryPlan(0, H * 4, ArenaBytes(0, 0, 0, 0)),
    )
    return TargetEntry(**{**fields, **changes})  # type: ignore[arg-type]


def sources() -> dict[str, str]:
    """CUDA sources by stem: a cubin each."""
    return {"toy": KERNELS, "toy_tma": TMA}


def cubins(arch: str = "sm_90a") -> dict[str, bytes]:
    return {name: compile_cubin(text, arch, name=f"{name}.cu").cubin for name, text in sources().items()}


def write(
    folder: Path,
    model: Model,
    compiled: dict[str, bytes],
    change: Callable[[Plan], Plan] = lambda plan: plan,
    targets: tuple[TargetEntry, ...] | None = None,
    limits: Limits | None = None,
) -> Path:
    """A sealed engine folder; `change` is applied to both plans."""
    cubin_folder, sources_folder, plans = folder / "kernels/sm_90a", folder / "kernels/cuda/src", folder / "plans/h100"
    for path in (cubin_folder, sources_folder, plans):
        path.mkdir(parents=True)
    for name, cubin in compiled.items():
        (cubin_folder / f"{name}.cubin").write_bytes(cubin)
    for name, text in sources().items():
        (sources_folder / f"{name}.cu").write_text(text)
    for name in ("device.cuh", "step.cuh"):
        (sources_folder / name).write_text((TEMPLATES / name).read_text())
    for entry in ("prefill", "decode"):
        (plans / f"{entry}.json").write_bytes(render_json(to_plain(change(plan(entry)))))
    # an unused tensor between used ones, as an engine of several targets has them
    unused = np.full(100, np.nan, np.float32)
    tensors = {"embedding": model.embedding, "of.another.target": unused, "head": model.head, "bias": model.bias}
    (folder / "weights.safetensors").write_bytes(safetensors(tensors))
    manifest = Manifest(
        producer={"llmc": "test"},
        targets=targets or (target(),),
        model=ModelSummary("toy", "Toy", "f32", 1, VOCAB, VALID, MAX_LEN),
        limits=limits or Limits(MAX_LEN, MAX_BATCH, MAX_TOKENS),
        tokens=SpecialTokens(None, (), None, False),
        generation=GenerationDefaults(),
        files={},
    )
    seal(folder, manifest)
    return folder


def safetensors(tensors: dict[str, np.ndarray]) -> bytes:
    """Tensors at multiples of 128 bytes, in the order given."""
    header, data = {}, b""
    for name, values in tensors.items():
        raw = values.tobytes()
        raw += bytes(-len(raw) % 128)
        header[name] = {"dtype": "U8", "shape": [len(raw)], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 4096)
    return struct.pack("<Q", len(text)) + text + data
