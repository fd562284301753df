"""Bytes and operations of each kernel-level op, counted by hand."""

from __future__ import annotations

import pytest

from llmc.codegen.cpu.formats import row_bytes
from llmc.codegen.cpu.storage import CpuStorage
from llmc.codegen.cuda.plan.storage import CudaStorage
from llmc.codegen.work import Costing, Step, Unit, Work, kernels, visible
from llmc.ir.dims import sym
from llmc.ir.formats import Groups
from llmc.ir.graph import IRError
from llmc.ir.ops.attention import Mask
from llmc.ir.parser import parse
from llmc.ir.types import DType, TensorType

DECODE = Step(seqs=3, new=1, past=10)
PREFILL = Step(seqs=1, new=5, past=0)


def weight(name: str, dtype: str, shape: str) -> str:
    return f'%{name} = weight{{expr=Source{{name="{name}", dtype={dtype}, shape={shape}}}}}() : {dtype}{shape}'


def work(body: str, step: Step = DECODE, inputs: str = "%x: bf16[T, 24]", outputs: str = "%y") -> Work:
    """Of the last kernel of a graph."""
    graph = parse(
        f"graph g {{\n  dims R in [1, inf], T in [1, inf]\n  inputs {inputs}\n{body}\n  outputs {outputs}\n}}\n"
    )
    return Costing.of(graph, CudaStorage()).work(kernels(graph)[-1], step)


LINEAR = (
    weight("w", "bf16", "[40, 24]")
    + "\n"
    + weight("b", "f32", "[40]")
    + """
  %y = packed_linear{scheme=bf16, epilogue=graph epilogue {
    inputs %r: f32[T, 40], %bias: f32[40], %more: f32[T, 40]
    %s = binary{fn=add}(%r, %bias) : f32[T, 40]
    %t = binary{fn=add}(%s, %more) : f32[T, 40]
    %u = cast{dtype=bf16}(%t) : bf16[T, 40]
    outputs %u
  }}(%x, %w, %b, %res) : bf16[T, 40]"""
)


def test_linear() -> None:
    found = work(LINEAR, inputs="%x: bf16[T, 24], %res: f32[T, 40]")
    assert found == Work(
        weights=40 * 24 * 2 + 40 * 4,
        reads=3 * 24 * 2 + 3 * 40 * 4,
        writes=3 * 40 * 2,
        matrix_flops=2 * 3 * 40 * 24,
        matrix_unit=Unit.BF16,
        vector_flops=2 * 3 * 40,  # the conversion is none
    )
    assert found.num_bytes == 2080 + 624 + 240


def test_rows_are_padded_to_sixteen_bytes() -> None:
    body = """
  %y = rows{body=graph rows {
    inputs %a: bf16[T, 5]
    %b = cast{dtype=f32}(%a) : f32[T, 5]
    %c = unary{fn=silu}(%b) : f32[T, 5]
    outputs %c
  }}(%x) : f32[T, 5]"""
    assert work(body, inputs="%x: bf16[T, 5]") == Work(reads=3 * 16, writes=3 * 32, vector_flops=15)


def test_an_embedding_reads_the_rows_it_looks_up() -> None:
    body = (
        weight("table", "bf16", "[1000, 24]")
        + """
  %y = rows{body=graph rows {
    inputs %t: bf16[1000, 24], %i: i32[T]
    %e = embedding(%t, %i) : f32[T, 24]
    outputs %e
  }}(%table, %ids) : f32[T, 24]"""
    )
    assert work(body, inputs="%ids: i32[T]") == Work(weights=3 * 24 * 2, reads=3 * 4, writes=3 * 24 * 4)
    # never more than the whole table
    many = work(body, Step(1, 5000, 0), inputs="%ids: i32[T]")
    assert many.weights == 1000 * 24 * 2


def test_slices_and_gathers_read_what_they_take() -> None:
    body = """
  %y = rows{body=graph rows {
    inputs %a: f32[T, 24], %r: i32[R]
    %b = slice{axis=1, start=0, stop=8}(%a) : f32[T, 8]
    %c = gather_rows(%b, %r) : f32[R, 8]
    outputs %c
  }}(%x, %rows) : f32[R, 8]"""
    found = work(body, PREFILL, inputs="%x: f32[T, 24], %rows: i32[R]")
    assert found == Work(reads=5 * 8 * 4 + 4, writes=8 * 4)
    gathered = body.replace("    %b = slice{axis=1, start=0, stop=8}(%a) : f32[T, 8]\n", "").replace("(%b,", "(%a,")
    gathered = gathered.replace("f32[R, 8]", "f32[R, 24]")
    assert work(gathered, PREFILL, inputs="%x: f32[T, 24], %rows: i32[R]").reads == 24 * 4 + 4


ATTENTION = """
  %kv1 = rows{body=graph rows {
    inputs %kv0: kv, %k: f32[T, 2, 20], %p: i32[T], %s: i32[T]
    %kv2 = kv_write{slot=0, dtype=bf16}(%kv0, %k, %k, %p, %s) : kv
    outputs %kv2
  }}(%kv, %key, %p, %s) : kv
  %y = paged_attention{slot=0, scale=0.2, num_kv_heads=2, value_dim=20MORE}(%kv1, %q, %p, %s) : f32[T, 6, 20]"""
INPUTS = "%q: bf16[T, 6, 20], %key: f32[T, 2, 20], %p: i32[T], %s: i32[T], %kv: kv"
TOKEN = 2 * 2 * 32 * 2  # keys and values, 2 heads, dims padded to 32, bf16


def attention(step: Step, more: str = "") -> Work:
    return work(ATTENTION.replace("MORE", more), step, INPUTS, "%y, %kv1")


def test_attention_of_a_decode_step() -> None:
    scores = 3 * 6 * 11
    assert attention(DECODE) == Work(
        reads=3 * 240 + 2 * 3 * 4,
        writes=3 * 480,
        kv_reads=3 * 11 * TOKEN,
        matrix_flops=2 * scores * 40,
        matrix_unit=Unit.BF16,
        vector_flops=5 * scores,
    )


def test_attention_of_a_prompt_is_causal() -> None:
    found = attention(PREFILL)
    assert found.matrix_flops == 2 * 6 * (1 + 2 + 3 + 4 + 5) * 40
    assert found.kv_reads == 5 * TOKEN
    assert attention(PREFILL, ", softcap=30.0").vector_flops == found.vector_flops // 5 * 8


def test_attention_in_a_window_reads_the_window() -> None:
    found = attention(DECODE, ", mask=Mask{window=4}")
    assert found.kv_reads == 3 * 4 * TOKEN and found.matrix_flops == 2 * 3 * 6 * 4 * 40


@pytest.mark.parametrize("mask", [Mask(), Mask(window=7), Mask(chunk=5), Mask(window=3, chunk=4)])
@pytest.mark.parametrize("new, past", [(1, 0), (1, 23), (9, 0), (6, 17)])
def test_visible_keys_one_by_one(mask: Mask, new: int, past: int) -> None:
    def sees(i: int, j: int) -> bool:
        near = mask.window is None or i - j < mask.window
        return j <= i and near and (mask.chunk is None or i // mask.chunk == j // mask.chunk)

    pairs = [(i, j) for i in range(past, past + new) for j in range(past + new) if sees(i, j)]
    # the cache is read from the first key any query sees; keys between two chunks' are read with them
    assert visible(mask, new, past) == (len(pairs), past + new - min(j for _, j in pairs))


def test_kv_writes() -> None:
    body = ATTENTION.replace("MORE", "").split("  %y =")[0]
    found = work(body, DECODE, INPUTS, "%kv1")
    assert found == Work(reads=3 * 160 + 2 * 3 * 4, kv_writes=3 * TOKEN)


def test_sampling() -> None:
    found = work("  %y = sample{num_valid_tokens=90}(%x) : i32[R]", inputs="%x: f32[R, 100]")
    assert found == Work(reads=3 * 400, writes=3 * 4, vector_flops=6 * 300)


@pytest.mark.parametrize(
    "op, operations",
    [
        ("%b = rms_norm{eps=1e-05}(%a, %g) : f32[T, 24]", 4 * 24),
        ("%b = rms_norm{eps=1e-05}(%a) : f32[T, 24]", 3 * 24),
        ("%b = layer_norm{eps=1e-05}(%a, %g, %g) : f32[T, 24]", 7 * 24),
        ("%b = softmax(%a) : f32[T, 24]", 5 * 24),
        ("%b = binary{fn=mul}(%a, %g) : f32[T, 24]", 24),
        ("%c = reduce{fn=sum, axis=1}(%a) : f32[T, 1]\n    %b = binary{fn=mul}(%a, %c) : f32[T, 24]", 48),
        ("%c = cast{dtype=bf16}(%a) : bf16[T, 24]\n    %b = cast{dtype=f32}(%c) : f32[T, 24]", 0),
        ("%c = permute{perm=[0, 1]}(%a) : f32[T, 24]\n    %b = unary{fn=exp}(%c) : f32[T, 24]", 24),
    ],
)
def test_operations_of_row_ops(op: str, operations: int) -> None:
    body = (
        weight("gain", "f32", "[24]")
        + f"""
  %y = rows{{body=graph rows {{
    inputs %a: f32[T, 24], %g: f32[24]
    {op}
    outputs %b
  }}}}(%x, %gain) : f32[T, 24]"""
    )
    assert work(body, inputs="%x: f32[T, 24]").vector_flops == 3 * operations


def test_operations_of_rope() -> None:
    body = (
        weight("freq", "f32", "[4]")
        + """
  %y = rows{body=graph rows {
    inputs %a: f32[T, 2, 12], %p: i32[T], %f: f32[4]
    %c, %s = rope_table(%p, %f) : f32[T, 4], f32[T, 4]
    %b = rope{style=half}(%a, %c, %s) : f32[T, 2, 12]
    outputs %b
  }}(%x, %positions, %freq) : f32[T, 2, 12]"""
    )
    found = work(body, inputs="%x: f32[T, 2, 12], %positions: i32[T]")
    assert found.vector_flops == 3 * (3 * 4 + 3 * 2 * 8)  # 8 of a head's 12 dims turn


def test_quantised_rows_and_weights() -> None:
    body = (
        weight("w", "i8", "[32, 128]")
        + "\n"
        + weight("s", "f32", "[32]")
        + """
  %q = rows{body=graph rows {
    inputs %a: f32[T, 128]
    %b = quantize_rows{group=64}(%a) : i8[T, 128]{groups64}
    outputs %b
  }}(%x) : i8[T, 128]{groups64}
  %y = packed_linear{scheme=int8g64, epilogue=graph epilogue {
    inputs %r: f32[T, 32]
    outputs %r
  }}(%q, %w, %s) : f32[T, 32]"""
    )
    found = work(body, inputs="%x: f32[T, 128]")
    assert found.weights == 32 * 128 + 32 * 4 and found.reads == 3 * (128 + 2 * 4)
    assert found.matrix_unit is Unit.S8 and found.matrix_flops == 2 * 3 * 32 * 128


def test_what_is_no_kernel_is_refused() -> None:
    body = weight("w", "f32", "[40, 24]") + "\n  %y = linear(%x, %w) : f32[T, 40]"
    with pytest.raises(IRError, match="linear at no module: no kernel"):
        work(body, inputs="%x: f32[T, 24]")
    inside = """
  %y = rows{body=graph rows {
    inputs %a: f32[T, 24], %w: f32[40, 24]
    %b = linear(%a, %w) : f32[T, 40]
    outputs %b
  }}(%x, %v) : f32[T, 40]"""
    with pytest.raises(IRError, match="linear at no module: no operations are known"):
        work(weight("v", "f32", "[40, 24]") + inside, inputs="%x: f32[T, 24]")


def test_cpu_rows_are_those_of_its_kernels() -> None:
    for type_ in (TensorType(DType.BF16, (sym("T"), 50)), TensorType(DType.I8, (sym("T"), 128), Groups(64))):
        assert CpuStorage().row_bytes(type_) == row_bytes(type_)
