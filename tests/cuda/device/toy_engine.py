"""An engine whose model is a toy in whole numbers, so that every order of its sums gives the same float: hand-written
kernels and plans for the runtime's CUDA side, and the same model in numpy.

A token's row is emb[id]; two KV groups hold row + position, and attention is the sum over all positions so far of the
one and over the last WINDOW of the other; logits are (both + 2 * row) . head + bias, which comes through a TMA box.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from llmc.codegen.cuda import arguments as operands
from llmc.codegen.cuda.arguments import Operand, Result, StepArray
from llmc.codegen.cuda.kernel import render
from llmc.codegen.cuda.sample.params import SampleParams
from llmc.codegen.cuda.target.nvrtc import compile_cubin, headers
from llmc.runtime.artifact.artifact import seal
from llmc.runtime.artifact.kv_layout import KvGroup, KvLayout, KvSlot
from llmc.runtime.artifact.manifest import (
    ArenaBytes,
    GenerationDefaults,
    Limits,
    Manifest,
    ModelSummary,
    SpecialTokens,
    TargetEntry,
    TargetMemory,
)
from llmc.runtime.artifact.plan import Arena, Buffer
from llmc.runtime.artifact.strict_json import render_json, to_plain
from llmc.runtime.cuda.plan import (
    Argument,
    Box,
    Extent,
    Factor,
    Launch,
    Plan,
    Scratch,
    Variant,
)

VOCAB, VALID, H, BLOCK, WINDOW, MAX_LEN, MAX_BATCH, MAX_TOKENS = 64, 60, 32, 4, 6, 64, 6, 40
BLOCK_BYTES = BLOCK * H * 4
SAMPLE = SampleParams(VALID, VOCAB, threads=64, listed=64)

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
                          const unsigned char* pool, long long block_bytes, int window, float* out) {
  const int t = blockIdx.x;
  if (t >= counts->tokens) return;
  grid_wait();
  grid_launch_dependents();
  float sum = 0;
  for (int p = window && positions[t] >= window ? positions[t] - window + 1 : 0; p <= positions[t]; p++) {
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

LLMC_KERNEL(32, 1) mix(const Counts* counts, const int* rows, const float* a, const float* w, const float* b,
                       float* out) {
  if (int(blockIdx.x) >= counts->rows) return;
  grid_wait();
  grid_launch_dependents();
  const int at = rows[blockIdx.x] * 32 + threadIdx.x;
  out[blockIdx.x * 32 + threadIdx.x] = a[at] + w[at] + b[at];
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

        def draw(*shape: int) -> np.ndarray:
            return rng.integers(-3, 4, shape).astype(np.float32)

        return Model(draw(VOCAB, H), draw(VOCAB, H), draw(VOCAB))

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """[n, VOCAB] after each token."""
        rows = self.embedding[np.asarray(ids)]
        cache = rows + np.arange(len(ids), dtype=np.float32)[:, None]
        whole = np.cumsum(cache, 0)
        behind = np.concatenate([np.zeros((WINDOW, H), np.float32), whole])[: len(ids)]
        logits: np.ndarray = (whole + (whole - behind) + 2 * rows) @ self.head.T + self.bias
        return logits

    def answer(self, ids: Sequence[int], count: int) -> list[int]:
        """Greedy, ties to the lowest id."""
        ids = list(ids)
        for _ in range(count):
            ids.append(int(self.logits(ids)[-1, :VALID].argmax()))
        return ids[-count:]


def _pointer(kind: str, name: str, box: Box | None = None) -> Argument:
    return Argument(kind, name, box=box)


COUNTS = _pointer("input", "counts")


def _extent(times: int, *factors: tuple[str, int]) -> Extent:
    return Extent(times, tuple(Factor(symbol, per) for symbol, per in factors))


def _buffers(entry: str) -> tuple[tuple[Buffer, ...], Arena]:
    """Rows of tokens are kept in the region of tokens, or in decode in that of sampled rows."""
    region = "T" if entry == "prefill" else "R"
    per, buffers = {"T": 0, "R": 0}, []
    widths = {
        "h": (region, H),
        "a": (region, H),
        "w": (region, H),
        "s": (region, H),
        "g": ("R", H),
        "logits": ("R", VOCAB),
    }
    for name, (rows, width) in widths.items():
        buffers.append(Buffer(name, f"f32[{rows}, {width}]", rows, width * 4, per[rows]))
        per[rows] += width * 4
    return tuple(buffers), Arena(per["T"], per["R"])


def _variant(kernel: str, symbol: str, *arguments: Argument, block: int = 32, shared: int = 0) -> Variant:
    """A block per token or sampled row."""
    return Variant(1 << 30, kernel, (_extent(1, (symbol, 1)),), block, shared, (COUNTS, *arguments), {})


def _head(kernel: str, up_to: int, rows: int) -> Variant:
    """Blocks of so many rows, which count themselves in the scratch `done`."""
    arguments = [_buffer("g"), _pointer("weight", "head"), _buffer("logits"), _pointer("scratch", "done")]
    blocks = Argument("extent", extent=_extent(2, ("R", rows)))
    grid = (_extent(2), _extent(1, ("R", rows)))
    return Variant(up_to, kernel, grid, 32, 0, (COUNTS, *arguments, blocks), {"done": _extent(4)})


def _buffer(name: str) -> Argument:
    return _pointer("buffer", name)


def _sampling(operand: Operand) -> Argument:
    match operand:
        case StepArray(name):
            return _pointer("input", name)
        case operands.Scratch(name):
            return _pointer("scratch", name)
        case Result(name):
            return _pointer("output", name)
    return _buffer("logits")


def plan(entry: str) -> Plan:
    """Both entries launch the same kernels."""
    buffers, arena = _buffers(entry)
    positions, seqs, rows = (_pointer("input", name) for name in ("positions", "seqs", "rows"))
    block_bytes = Argument("i64", value=BLOCK_BYTES)
    launches: list[Launch] = []

    def add(op: str, after: tuple[int, ...], rows: str, *variants: Variant) -> int:
        launches.append(Launch(op, f"toy.{op}", (), (), (), after, rows, variants))
        return len(launches) - 1

    table = _pointer("weight", "embedding")
    embed = add("embed", (), "T", _variant("embed", "T", _pointer("input", "ids"), table, _buffer("h")))
    attended = []
    for group, window, out in ((0, 0, "a"), (1, WINDOW, "w")):
        where = (positions, seqs, _pointer("input", f"tables.{group}"))
        pool = (_pointer("kv", str(group)), block_bytes)
        append = add("append", (embed,), "T", _variant("append", "T", *where, _buffer("h"), *pool))
        attend = _variant("attend", "T", *where, *pool, Argument("i32", value=window), _buffer(out))
        attended.append(add("attend", (append,), "T", attend))
    double = Argument("f32", value=2.0)
    scale = add("scale", (embed,), "T", _variant("scale", "T", _buffer("h"), _buffer("s"), double))
    mixed = _variant("mix", "R", rows, *(_buffer(name) for name in ("a", "w", "s", "g")))
    mix = add("mix", (*attended, scale), "R", mixed)
    head = add("head", (mix,), "R", _head("head_one", 2, 1), _head("head_four", 1 << 30, 4))
    row = _pointer("weight", "bias", Box("f32", 1, VOCAB, VOCAB * 4, 1, VOCAB, 0))
    bias = add("bias", (head,), "R", _variant("add_bias", "R", row, _buffer("logits"), block=64, shared=1024))
    chosen = tuple(_sampling(argument.operand) for argument in SAMPLE.arguments)
    edited = {"edited_logits": _extent(4 * SAMPLE.row_floats, ("R", 1))}
    grid = (_extent(1, ("R", 1)),)
    add("sample", (bias,), "R", Variant(1 << 30, "sample", grid, SAMPLE.threads, SAMPLE.smem_bytes, chosen, edited))
    files = {v.kernel: "kernels/sm_90a/toy.cubin" for launch in launches for v in launch.variants}
    files |= {"add_bias": "kernels/sm_90a/toy_tma.cubin", "sample": "kernels/sm_90a/toy_sample.cubin"}
    scratch = (Scratch("done", True), Scratch("edited_logits", False))
    return Plan(entry, arena, buffers, scratch, files, tuple(launches), "logits")


def without_edge(whole: Plan, launch: int, before: int) -> Plan:
    """The plan without one of its edges."""
    launches = list(whole.launches)
    launches[launch] = replace(launches[launch], after=tuple(j for j in launches[launch].after if j != before))
    return replace(whole, launches=tuple(launches))


def target(**changes: object) -> TargetEntry:
    groups = tuple(KvGroup(window, BLOCK_BYTES, H * 4, (KvSlot("toy", 1, H, H, "f32"),)) for window in (None, WINDOW))
    fields: dict[str, object] = dict(
        kind="cuda",
        name="h100",
        arch="sm_90a",
        features=(),
        kernels="kernels/sm_90a",
        plans="plans/h100",
        kv=KvLayout(BLOCK, groups),
        memory=TargetMemory(0, 2 * H * 4, ArenaBytes(0, 0, 0, 0)),
    )
    return TargetEntry(**{**fields, **changes})  # type: ignore[arg-type]


def sources() -> dict[str, str]:
    """CUDA sources by stem: a cubin each."""
    return {"toy": KERNELS, "toy_tma": TMA, "toy_sample": render(SAMPLE, "sample")}


def cubins(arch: str = "sm_90a") -> dict[str, bytes]:
    return {name: compile_cubin(text, arch, name=f"{name}.cu").cubin for name, text in sources().items()}


def write(
    folder: Path,
    model: Model,
    compiled: dict[str, bytes],
    change: Callable[[Plan], Plan] = lambda plan: plan,
    targets: tuple[TargetEntry, ...] | None = None,
    limits: Limits | None = None,
    texts: Mapping[str, str] | None = None,
) -> Path:
    """A sealed engine folder; `change` is applied to both plans; `texts` are further files."""
    cubin_folder, sources_folder, plans = folder / "kernels/sm_90a", folder / "kernels/cuda/src", folder / "plans/h100"
    for path in (cubin_folder, sources_folder, plans):
        path.mkdir(parents=True)
    for name, cubin in compiled.items():
        (cubin_folder / f"{name}.cubin").write_bytes(cubin)
    for name, text in sources().items():
        (sources_folder / f"{name}.cu").write_text(text)
    for name, text in headers().items():
        (sources_folder / name).write_text(text)
    for entry in ("prefill", "decode"):
        (plans / f"{entry}.json").write_bytes(render_json(to_plain(change(plan(entry)))))
    for name, text in (texts or {}).items():
        (folder / name).write_text(text)
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


def tokenizer_json() -> str:
    """A tokenizer whose ids 0 .. VALID - 1 are the characters from '!' on."""
    from tokenizers import Tokenizer, decoders, models

    vocab = {chr(ord("!") + i): i for i in range(VALID)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.Fuse()
    return str(tokenizer.to_str())


def text_of(ids: Sequence[int]) -> str:
    return "".join(chr(ord("!") + i) for i in ids)
