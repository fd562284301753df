"""Rows bodies as dense models have them, at their real widths: what the kernels of this project are shown on."""

from __future__ import annotations

from functools import cache

from llmc.codegen.cuda.rows.kernel import RowsParams, write_rows
from llmc.ir.graph import Graph, Value
from llmc.ir.parser import parse
from llmc.ir.types import CacheType

STEP_ARRAYS = ("ids", "positions", "seqs", "rows")


def rms_norm(hidden: int) -> Graph:
    return _graph(f"""
        inputs %x: f32[T, {hidden}], %norm: f32[{hidden}]
        %y = rms_norm{{eps=1e-05}}(%x, %norm) : f32[T, {hidden}]
        %z = cast{{dtype=bf16}}(%y) : bf16[T, {hidden}]
        outputs %z""")


def rms_norm_bf16(hidden: int) -> Graph:
    """Of a residual stream in bf16."""
    return _graph(f"""
        inputs %x: bf16[T, {hidden}], %norm: f32[{hidden}]
        %wide = cast{{dtype=f32}}(%x) : f32[T, {hidden}]
        %y = rms_norm{{eps=1e-05}}(%wide, %norm) : f32[T, {hidden}]
        %z = cast{{dtype=bf16}}(%y) : bf16[T, {hidden}]
        outputs %z""")


def rms_norm_residual(hidden: int) -> Graph:
    """s = x + r is the new residual stream, and normed."""
    return _graph(f"""
        inputs %x: f32[T, {hidden}], %r: f32[T, {hidden}], %norm: f32[{hidden}]
        %s = binary{{fn=add}}(%x, %r) : f32[T, {hidden}]
        %y = rms_norm{{eps=1e-05}}(%s, %norm) : f32[T, {hidden}]
        %z = cast{{dtype=bf16}}(%y) : bf16[T, {hidden}]
        outputs %s, %z""")


def layer_norm(hidden: int) -> Graph:
    return _graph(f"""
        inputs %x: f32[T, {hidden}], %norm: f32[{hidden}], %bias: f32[{hidden}]
        %y = layer_norm{{eps=1e-05, has_weight=true, has_bias=true}}(%x, %norm, %bias) : f32[T, {hidden}]
        %z = cast{{dtype=bf16}}(%y) : bf16[T, {hidden}]
        outputs %z""")


def embedding(vocab: int, hidden: int, half: int) -> Graph:
    """A step's first kernel: embedding, the first norm, and the rotary angles of all layers."""
    return _graph(f"""
        inputs %table: bf16[{vocab}, {hidden}], %ids: i32[T], %norm: f32[{hidden}],
            %positions: i32[T], %freq: f32[{half}]
        %x = embedding(%table, %ids) : f32[T, {hidden}]
        %y = rms_norm{{eps=1e-05}}(%x, %norm) : f32[T, {hidden}]
        %z = cast{{dtype=bf16}}(%y) : bf16[T, {hidden}]
        %cos, %sin = rope_table(%positions, %freq) : f32[T, {half}], f32[T, {half}]
        outputs %x, %z, %cos, %sin""")


def queries_keys_values(
    heads: int, kv_heads: int, dim: int, norms: bool, style: str = "half", turned: int = 0
) -> Graph:
    """One matrix's q, k and v: norms per head, rotary positions of `turned` dims (0: all), cache write."""
    half, q, k = (turned or dim) // 2, heads * dim, kv_heads * dim

    def part(name: str, at: int, n: int) -> str:
        text = f"""
        %{name}0 = slice{{axis=1, start={at}, stop={at + n * dim}, step=1}}(%qkv) : f32[T, {n * dim}]
        %{name}1 = view{{shape=[T, {n}, {dim}]}}(%{name}0) : f32[T, {n}, {dim}]"""
        if name == "v":
            return text
        last = f"{name}1"
        if norms:
            last = f"{name}2"
            text += f"\n%{name}2 = rms_norm{{eps=1e-06}}(%{name}1, %{name}norm) : f32[T, {n}, {dim}]"
        return text + f"\n%{name}3 = rope{{style={style}}}(%{last}, %cos, %sin) : f32[T, {n}, {dim}]"

    weights = f", %qnorm: f32[{dim}], %knorm: f32[{dim}]" if norms else ""
    return _graph(f"""
        inputs %cache: kv, %qkv: f32[T, {q + 2 * k}], %cos: f32[T, {half}], %sin: f32[T, {half}]{weights},
            %positions: i32[T], %seqs: i32[T]
        {part("q", 0, heads)}{part("k", q, kv_heads)}{part("v", q + k, kv_heads)}
        %qz = cast{{dtype=bf16}}(%q3) : bf16[T, {heads}, {dim}]
        %written = kv_write{{slot=0, dtype=bf16}}(%cache, %k3, %v1, %positions, %seqs) : kv
        outputs %qz, %written""")


def sampled(hidden: int) -> Graph:
    """The rows that get logits, gathered and normed."""
    return _graph(f"""
        inputs %x: f32[T, {hidden}], %rows: i32[R], %norm: f32[{hidden}]
        %g = gather_rows(%x, %rows) : f32[R, {hidden}]
        %y = rms_norm{{eps=1e-05}}(%g, %norm) : f32[R, {hidden}]
        %z = cast{{dtype=bf16}}(%y) : bf16[R, {hidden}]
        outputs %z""")


def every_type(width: int) -> Graph:
    """Rows of each stored type, read and written, as they lie and with their halves exchanged (in shared memory)."""
    half = width // 2

    def turned(name: str, dtype: str) -> str:
        return f"""
        %{name}0 = slice{{axis=1, start=0, stop={half}, step=1}}(%{name}) : {dtype}[T, {half}]
        %{name}1 = slice{{axis=1, start={half}, stop={width}, step=1}}(%{name}) : {dtype}[T, {half}]
        %{name}2 = concat{{axis=1}}(%{name}1, %{name}0) : {dtype}[T, {width}]"""

    return _graph(f"""
        inputs %f: f32[T, {width}], %b: bf16[T, {width}], %h: f16[T, {width}], %i: i32[T, {width}], %m: bool[T, {width}]
        {turned("f", "f32")}{turned("i", "i32")}{turned("m", "bool")}
        %wide = cast{{dtype=f32}}(%b) : f32[T, {width}]
        %also = cast{{dtype=f32}}(%h) : f32[T, {width}]
        %sum = binary{{fn=add}}(%wide, %also) : f32[T, {width}]
        %x = where(%m2, %sum, %f2) : f32[T, {width}]
        %twice = binary{{fn=add}}(%i2, %i) : i32[T, {width}]
        %not = unary{{fn=not}}(%m2) : bool[T, {width}]
        %p = cast{{dtype=bf16}}(%x) : bf16[T, {width}]
        %q = cast{{dtype=f16}}(%x) : f16[T, {width}]
        %softmax = softmax(%x) : f32[T, {width}]
        outputs %x, %p, %q, %twice, %not, %softmax""")


def step_arrays(body: Graph) -> list[Value]:
    """The inputs of a body that are arrays of the step, where those go by their names."""
    tensors = [v for v in body.inputs if not isinstance(v.type, CacheType)]
    return [v for v in tensors if v.name in STEP_ARRAYS and v.tensor.rank == 1]


def kernel(body: Graph) -> RowsParams:
    """The kernel of such a body."""
    return write_rows(body, step_arrays(body))


@cache
def examples() -> dict[RowsParams, Graph]:
    """Llama-3.1-8B, Qwen3, GPT-2 and GPT-J shaped kernels with their bodies."""
    bodies = (
        rms_norm(4096),
        rms_norm(576),
        rms_norm_bf16(576),
        rms_norm_residual(4096),
        layer_norm(768),
        embedding(1000, 576, 32),
        queries_keys_values(32, 8, 128, norms=False),
        queries_keys_values(16, 8, 128, norms=True),
        queries_keys_values(4, 4, 64, norms=False, style="interleaved", turned=32),
        sampled(576),
        every_type(48),
    )
    return {kernel(body): body for body in bodies}


def _graph(text: str) -> Graph:
    return parse(f"graph rows {{\n dims R in [1, inf], T in [1, inf]\n{text}\n}}")
