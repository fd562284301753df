"""One attention layer as its kernels see it: numbers, C++ types, and the arguments they share.

The twin of templates/cuda/attention_layer.cuh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmc.codegen.cuda.arguments import (
    Input,
    KernelArgument,
    Number,
    Output,
    Part,
    Scratch,
    Slot,
    StepArray,
    Whole,
    counts,
)
from llmc.codegen.cuda.kernel import check
from llmc.codegen.cuda.plan.kv import KV_BLOCK, CudaKvSlot
from llmc.codegen.cuda.target.capabilities import CudaTarget
from llmc.ir.types import DType
from llmc.runtime.cuda.plan import Extent, Factor

HALVES = (DType.BF16, DType.F16)
MAX_HEAD_DIM = 256
SPLITS = (128, 64)  # keys of a split, the preferred one first
SPLITS_SCRATCH = Scratch("attention")  # what decode leaves for combine; all attention of an entry shares it
HEADER_FLOATS = 4  # of a split in scratch, before its values
WARPS = 4


@dataclass(frozen=True)
class Layer:
    """Heads, dims, and what a query may see. `split`: keys summed up by themselves, the canonical unit of attention.

    window, chunk: positions, 0 for no such limit. Illegal values raise ValueError.
    """

    dtype: DType
    q_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    split: int
    window: int = 0
    chunk: int = 0
    softcap: bool = False
    sinks: bool = False
    alibi: bool = False

    def __post_init__(self) -> None:
        check(self.dtype in HALVES, f"queries and cache in {self.dtype.value}: CUDA attention takes bf16 or f16")
        check(self.kv_heads > 0 and self.q_heads > 0, f"{self.q_heads} query and {self.kv_heads} KV heads")
        check(
            self.q_heads % self.kv_heads == 0, f"{self.q_heads} query heads do not divide over {self.kv_heads} KV heads"
        )
        for name, dim in (("head_dim", self.head_dim), ("value_dim", self.value_dim)):
            ok = dim % 8 == 0 and 0 < dim <= MAX_HEAD_DIM
            check(ok, f"{name} {dim} is not a multiple of 8 up to {MAX_HEAD_DIM}")
        check(self.split in SPLITS, f"split {self.split} is not one of {SPLITS}")
        check(self.window >= 0 and self.chunk >= 0, f"window {self.window} and chunk {self.chunk} are not negative")

    @property
    def group(self) -> int:
        return self.q_heads // self.kv_heads

    @property
    def slot(self) -> CudaKvSlot:
        return CudaKvSlot(self.kv_heads, self.head_dim, self.value_dim, self.dtype, 0)

    @property
    def key_steps(self) -> int:
        return self.slot.padded_head_dim // 16

    @property
    def value_steps(self) -> int:
        return self.slot.padded_value_dim // 16

    @property
    def tile_bytes(self) -> int:
        """Of a split's keys and values."""
        return self.split * (self.slot.padded_head_dim + self.slot.padded_value_dim) * 2

    @property
    def split_bytes(self) -> int:
        """Of scratch, for a split of one query head of one sequence."""
        return (HEADER_FLOATS + self.slot.padded_value_dim) * 4

    @property
    def seen_splits(self) -> Extent:
        """The most splits a query may see."""
        limits = [limit for limit in (self.window, self.chunk) if limit]
        if limits:
            return Extent(-(-(min(limits) - 1) // self.split) + 1)
        return Extent(1, (Factor("L", self.split),))

    @property
    def scratch(self) -> Extent:
        """Bytes that decode leaves for combine."""
        splits = self.seen_splits
        return Extent(self.q_heads * self.split_bytes * splits.times, (Factor("S", 1), *splits.factors))

    @property
    def label(self) -> str:
        dims = f"d{self.head_dim}" + (f"v{self.value_dim}" if self.value_dim != self.head_dim else "")
        limits = (f"_w{self.window}" if self.window else "") + (f"_c{self.chunk}" if self.chunk else "")
        marks = "".join(f"_{name}" for name in ("softcap", "sinks", "alibi") if getattr(self, name))
        return f"{self.dtype.value}_h{self.q_heads}x{self.kv_heads}_{dims}_s{self.split}{limits}{marks}"

    @property
    def cpp(self) -> str:
        softcap, sinks, alibi = ("true" if flag else "false" for flag in (self.softcap, self.sinks, self.alibi))
        return (
            f"AttentionLayer<{self.dtype.value}, {self.q_heads}, {self.kv_heads}, {self.head_dim}, {self.value_dim}, "
            f"{self.split}, Sight<{self.window}, {self.chunk}>, Scoring<{softcap}, {alibi}>, {sinks}>"
        )

    @property
    def limits(self) -> str:
        return f"positions ascend in a sequence; blocks of {KV_BLOCK} positions; values that a chunk sees are finite"

    @property
    def numerics(self) -> str:
        return (
            f"f32 softmax in base 2 over splits of {self.split} keys from position 0, folded in order, whatever the\n"
            f"//          batch, chunk or form; weights rounded to {self.dtype.value} before the values"
        )


@dataclass(frozen=True)
class Split:
    """Keys of a split, why so many, and why not each of the longer ones."""

    keys: int
    reason: str
    rejected: Mapping[str, str]


def split_of(head_dim: int, value_dim: int, target: CudaTarget) -> Split:
    """For such heads on a target. Wide heads leave no registers for long splits, and two blocks of the decode form
    should fit a multiprocessor, so that one loads while the other computes."""
    slot = CudaKvSlot(1, head_dim, value_dim, DType.BF16, 0)
    widest = max(slot.padded_head_dim, slot.padded_value_dim)
    per_key = (slot.padded_head_dim + slot.padded_value_dim) * 2
    rejected: dict[str, str] = {}
    for split in SPLITS:
        two = 2 * (split * per_key + (16 << 10))
        if split == SPLITS[-1] or (widest <= 128 and two <= target.smem_sm):
            reason = (
                f"two blocks of {split * per_key:,} B of keys and values fit a multiprocessor's {target.smem_sm:,} B"
            )
            return Split(split, reason if two <= target.smem_sm else "the shortest", rejected)
        rejected[split_name(split)] = (
            f"heads of {widest} leave no registers"
            if widest > 128
            else f"two blocks want {two:,} B of a multiprocessor's {target.smem_sm:,} B"
        )
    raise AssertionError("the last split is always taken")


def split_name(keys: int) -> str:
    return f"splits of {keys} keys"


def arguments(layer: Layer, names: str, result: DType = DType.F32) -> tuple[KernelArgument, ...]:
    """Those of `names` that the layer has, in order. Inputs of the node: the cache, queries, positions, sequences, then
    sinks and slopes where there are such."""
    half, out = layer.dtype.value, cpp_type(result)
    stored = "f32" if result is DType.F32 else result.value
    heads = f"f32[{layer.q_heads}]"
    splits = f"f32[S,{layer.q_heads},max_splits,{layer.split_bytes // 4}]"
    known = (
        KernelArgument("q", f"const {half}*", Input(1), f"{half}[T,{layer.q_heads}*{layer.head_dim}]"),
        KernelArgument("kv", "unsigned char*", Slot(Part.POOL), "blocks of the KV pool"),
        KernelArgument("block_bytes", "long long", Slot(Part.BLOCK_BYTES), "i64"),
        KernelArgument("slot_offset", "long long", Slot(Part.OFFSET), "i64"),
        counts("Counts"),
        KernelArgument("tables", "const int*", Slot(Part.TABLES), "i32[S,table_stride]"),
        KernelArgument("positions", "const int*", StepArray("positions"), "i32[T]"),
        KernelArgument("seqs", "const int*", StepArray("seqs"), "i32[T]"),
        KernelArgument("seq_starts", "const int*", StepArray("seq_starts"), "i32[S+1]"),
        KernelArgument("sinks", "const float*", Input(4), heads),
        KernelArgument("slopes", "const float*", Input(4 + layer.sinks), heads),
        KernelArgument("scratch", "float*", SPLITS_SCRATCH, splits),
        KernelArgument("max_splits", "int", Whole(layer.seen_splits), "i32"),
        KernelArgument("out", f"{out}*", Output(), f"{stored}[T,{layer.q_heads}*{layer.value_dim}]"),
        KernelArgument("base2", "float", Number("base2"), "f32"),
        KernelArgument("cap", "float", Number("cap"), "f32"),
    )
    absent = {
        name for name, has in (("sinks", layer.sinks), ("slopes", layer.alibi), ("cap", layer.softcap)) if not has
    }
    by_name = {argument.name: argument for argument in known}
    return tuple(by_name[name] for name in names.split() if name not in absent)


def cpp_type(dtype: DType) -> str:
    return "float" if dtype is DType.F32 else dtype.value
