"""From a GGUF's blocks to what kernels read, with nothing rounded on the way."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from llmc.compiler.capture.capture import Captured, capture
from llmc.compiler.held import dtypes_of, rounded_again
from llmc.compiler.sources.gguf.blocks import FORMATS
from llmc.compiler.sources.resolve import open_source
from llmc.ir.formats import Scheme
from llmc.ir.graph import Graph, Node
from llmc.ir.ops.constant import Apply, Dequantize, Quantize, Weight, WeightExpr
from llmc.ir.ops.kernel import PackedLinear
from llmc.ir.quantise import Quantised
from llmc.ir.reference import Cache, run, weight
from llmc.passes.pipeline import default_pipeline, run_pipeline
from llmc.passes.rewrite import RuleLog
from tests.sources.gguf_files import as_read, llama_metadata, llama_tensors, logits, tiny_llama, write_gguf
from tests.tiny_models import relative_error

WIDTH = 256  # that K-quants fill
TYPES = {
    "attn_q": Kind.Q4_K,
    "attn_k": Kind.Q4_K,
    "attn_v": Kind.Q6_K,
    "attn_output": Kind.IQ4_XS,
    "ffn_gate": Kind.Q4_1,
    "ffn_up": Kind.Q4_1,
    "ffn_down": Kind.Q5_1,
    "token_embd": Kind.Q6_K,
}
SECOND = {
    "attn_q": Kind.Q5_0,
    "attn_k": Kind.Q8_0,
    "attn_v": Kind.Q8_0,
    "attn_output": Kind.Q5_K,
    "ffn_gate": Kind.MXFP4,
    "ffn_up": Kind.IQ4_NL,
    "ffn_down": Kind.Q4_0,
}


def unit_blocks(kind: Kind, rows: int) -> NDArray[np.uint8]:
    """Of random codes, with scales that make a matrix of unit gain; zeros of kinds that are not stored."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(int(kind)).integers(0, 256, (rows, WIDTH // block, size), np.uint8)
    if kind not in FORMATS:
        return np.zeros_like(blocks).reshape(rows, -1)
    fields = blocks.view(FORMATS[kind].struct)[..., 0]
    if kind is Kind.MXFP4:
        fields["e"] = 121
        return blocks.reshape(rows, -1)
    centre = {"d": 1.0, "dmin": 7.5 if kind is Kind.Q4_K else 15.5, "m": -7.5 if kind is Kind.Q4_1 else -15.5}
    names = [name for name in centre if name in (fields.dtype.names or ())]
    for name in names:
        fields[name] = centre[name]
    spread = gguf.dequantize(blocks.reshape(rows, -1), kind).std()
    for name in names:
        fields[name] = centre[name] / spread / WIDTH**0.5
    return blocks.reshape(rows, -1)


def write(path: Path, first: dict[str, Kind], second: dict[str, Kind]) -> Path:
    """A Llama of two layers in blocks; tied where no kind is given for its head."""
    tied = "output" not in first
    model = tiny_llama(hidden_size=WIDTH, intermediate_size=WIDTH, tie_word_embeddings=tied, head_dim=64)
    tensors, raw = llama_tensors(model), {}
    for name in list(tensors):
        *layer, short, _ = name.split(".")
        kind = (second if layer and layer[-1] == "1" else first).get(short)
        if kind is not None:
            raw[name] = (unit_blocks(kind, len(tensors.pop(name))), kind)
    write_gguf(path, "llama", llama_metadata(model), tensors, raw)
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied Llama whose every matrix is in blocks, of another kind wherever linears are not joined."""
    return write(tmp_path_factory.mktemp("blocks") / "m.gguf", TYPES, SECOND)


@pytest.fixture(scope="module")
def captured(file: Path) -> Captured:
    return capture(open_source(str(file)))


def lowered(captured: Captured, scheme: Scheme, as_stored: bool) -> Graph:
    pipeline = default_pipeline(scheme, 32, as_stored=as_stored)
    return run_pipeline(captured.graph, pipeline, RuleLog(), lambda *_: None)[0]


def notices(captured: Captured, graph: Graph) -> list[str]:
    return rounded_again([n.op.expr for n in graph.nodes if isinstance(n.op, Weight)], captured.checkpoint)


@pytest.fixture(scope="module")
def prefill(captured: Captured) -> Graph:
    return lowered(captured, Scheme.BF16, as_stored=True)


def linears(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if isinstance(node.op, PackedLinear)]


def scheme(node: Node) -> Scheme:
    assert isinstance(node.op, PackedLinear)
    return node.op.scheme


def ops(expr: WeightExpr) -> list[object]:
    return [expr.op, *(op for arg in expr.args for op in ops(arg))] if isinstance(expr, Apply) else []


def test_each_linear_has_the_numbers_of_its_blocks(prefill: Graph) -> None:
    """Of one layer queries and keys are joined, which are in the same blocks, and values are not; gates likewise."""
    found = [str(scheme(node)) for node in linears(prefill)]
    first = ["int4g32mf", "int8g16f", "nl4g32f", "int4g32m", "int8g32m"]
    second = ["int8g32", "int8g32mf", "mxfp4", "nl4g32", "int4g32"]  # Q5_0 and Q8_0 are one: 8 bits, half scales
    assert sorted(found) == sorted([*first, *second, "int8g16f"])
    assert sorted(dtypes_of(prefill).split("+")) == sorted({*first, *second})


def test_nothing_is_rounded_again(captured: Captured, prefill: Graph) -> None:
    """What kernels read stands for ggml's values, to the bit."""
    stored = {name: captured.checkpoint[name].read_f32() for name in captured.checkpoint.names}
    known = {row.tobytes() for values in stored.values() if values.ndim == 2 for row in values}
    exprs = {n.output: n.op.expr for n in prefill.nodes if isinstance(n.op, Weight)}
    assert not any(isinstance(op, Quantize | Dequantize) for expr in exprs.values() for op in ops(expr))
    rows = 0
    for node in linears(prefill):
        numbers = scheme(node).weight
        parts = [weight(exprs[value], captured.read) for value in node.inputs[1 : 1 + len(numbers.parts)]]
        values = Quantised.of(parts, numbers).floats().astype(np.float32)
        assert all(row.tobytes() in known for row in values)
        rows += len(values)
    assert rows == sum(len(values) for values in stored.values() if values.ndim == 2)
    assert notices(captured, prefill) == []


def test_embedding_and_head_are_one_weight(prefill: Graph) -> None:
    """Codes and scales of a tied table, which both read."""
    tables = [n for n in prefill.nodes if isinstance(n.op, Weight) and "embed_tokens" in str(n.op.expr)]
    assert len(tables) == 2
    head = linears(prefill)[-1]
    assert head.inputs[1:3] == tuple(n.output for n in tables)


def test_the_model_is_that_of_the_values(file: Path, captured: Captured, prefill: Graph) -> None:
    """transformers multiplies them in float32; here inputs are 8 bits, each group of 32 by its largest."""
    ids = np.arange(4, 44, dtype=np.int32) % 32
    places = np.arange(len(ids), dtype=np.int32)
    inputs = {"ids": ids, "positions": places, "seqs": np.zeros_like(ids), "rows": places, "kv": Cache()}
    ours = np.asarray(run(prefill, inputs, captured.read)[0])
    assert relative_error(ours, logits(as_read(file))) < 0.05


def test_what_is_rounded_again_is_told(captured: Captured) -> None:
    """Every low-bit tensor once; but not where values are held exactly, in float32."""
    (notice,) = notices(captured, lowered(captured, Scheme.INT8, as_stored=False))
    told = dict(entry.split(" x") for entry in notice.partition("again: ")[2].split(", "))
    assert told["int4g32mf"] == "2 to int8" and told["int8g16f"] == "2 to int8"  # q, k; v, the tied table
    assert sum(int(count.split()[0]) for count in told.values()) == 15
    assert notices(captured, lowered(captured, Scheme.F32, as_stored=False)) == []


def test_a_table_apart_from_the_head_stays_as_stored(tmp_path: Path) -> None:
    """And types that linears have no numbers of are said to be rounded."""
    first = {**TYPES, "token_embd": Kind.Q4_K, "output": Kind.Q8_0, "ffn_down": Kind.Q2_K}
    captured = capture(open_source(str(write(tmp_path / "m.gguf", first, {"ffn_down": Kind.Q2_K}))))
    graph = lowered(captured, Scheme.BF16, as_stored=True)
    types = [str(n.output.type) for n in graph.nodes if isinstance(n.op, Weight) and "embed_tokens" in str(n.op.expr)]
    assert types[0] == "u4[32, 256]{int4g32mf in panels}" and len(types) == 3
    assert notices(captured, graph) == ["weights that the source has in low bits are rounded again: Q2_K x2 to bf16"]
    plain = lowered(captured, Scheme.BF16, as_stored=False)
    assert "int4g32mf x3 to bf16" in notices(captured, plain)[0]  # q, k, the table
