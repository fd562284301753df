"""Linears of one model in several number formats: each is lowered, packed, interpreted and generated in its own."""

from __future__ import annotations

import re

import numpy as np
import pytest

from llmc.codegen.cpu.model import render
from llmc.codegen.packing import Packing, widen_bf16
from llmc.codegen.weights import place_weights, stored
from llmc.ir.formats import Packed, Scheme, WeightLayout
from llmc.ir.graph import Graph, IRError
from llmc.ir.ops.constant import Weight
from llmc.ir.ops.kernel import PackedLinear
from llmc.ir.parser import parse
from llmc.ir.reference import weight
from llmc.ir.verify import verify
from llmc.passes.pipeline import default_pipeline, run_pipeline, with_options
from llmc.passes.rewrite import RuleLog
from tests.models.captured import llama, read
from tests.models.engine import Reader
from tests.models.test_meaning import ROWS, outputs

MIXED = 'choose-formats{others=[At{module="layers.1", scheme=bf16}, At{module="head", scheme=f32}]}'


def lowered(captured: Graph, options: str, scheme: Scheme = Scheme.INT8) -> list[Graph]:
    pipeline = with_options(default_pipeline(scheme, 80), options)
    return run_pipeline(captured, pipeline, RuleLog(), lambda *_: None)


@pytest.fixture(scope="module")
def entries() -> list[Graph]:
    return lowered(llama(), MIXED)


def test_each_linear_and_its_weight_are_in_the_scheme_of_its_module(entries: list[Graph]) -> None:
    wanted = {"layers.0": Scheme.INT8, "layers.1": Scheme.BF16, "head": Scheme.F32}
    found = [(n, n.op.scheme) for g in entries for n in g.nodes if isinstance(n.op, PackedLinear)]
    assert len(found) == 2 * 9
    for node, scheme in found:
        assert scheme == wanted[node.loc]
        assert node.inputs[1].tensor.layout == Packed(scheme, WeightLayout.PANELS)


def test_a_tied_table_is_in_the_scheme_of_the_head(entries: list[Graph]) -> None:
    tables = [n.output for n in entries[0].nodes if isinstance(n.op, Weight) and n.output.tensor.shape == (100, 48)]
    assert [str(v.type) for v in tables] == ["f32[100, 48]{f32 in panels}"]


def test_the_meaning_is_the_models(entries: list[Graph]) -> None:
    expected = outputs(llama())[ROWS]
    error = np.abs(outputs(entries[0]) - expected).max() / np.abs(expected).max()
    assert 1e-4 < error < 4 / 127, "rounded, and not by more than int8 rounds"


def test_weights_are_packed_each_in_its_own_format(entries: list[Graph]) -> None:
    exprs = dict.fromkeys(n.op.expr for n in entries[0].nodes if isinstance(n.op, Weight))
    packed = [(e, e.type.layout) for e in exprs if isinstance(e.type.layout, Packed)]
    assert {str(layout.scheme) for _, layout in packed} == {"int8", "bf16", "f32"}
    for expr, layout in packed:
        data = np.concatenate(list(stored(expr, Reader())))
        found = Packing(layout.scheme, layout.order).unpack(data, *expr.type.static_shape())
        values = widen_bf16(found.view(np.uint16)) if found.dtype == np.uint16 else found
        assert np.array_equal(values, weight(expr, read))


def test_every_linear_has_the_kernel_of_its_scheme(entries: list[Graph]) -> None:
    placed = place_weights([n.op.expr for g in entries for n in g.nodes if isinstance(n.op, Weight)])
    text = render("m", "cpu", entries, {w.expr: w for w in placed}, 80).sources["model.cpp"]
    calls = re.findall(r"\b(linear|quantize_row|embed_row)<(.*?)>\(", text)
    assert {t for name, t in calls if name == "linear"} == {"Int8<64>", "Bf16", "F32"}
    assert {t for name, t in calls if name == "quantize_row"} == {"Int8<64>", "Bf16"}
    assert {t for name, t in calls if name == "embed_row"} == {"F32"}


GROUPED = Scheme.named("int8g32f_int8g0")


def test_scales_of_groups_of_a_weight_are_a_matrix_in_the_same_order() -> None:
    entries = run_pipeline(llama(), default_pipeline(GROUPED, 80), RuleLog(), lambda *_: None)
    linears = [n for n in entries[0].nodes if isinstance(n.op, PackedLinear)]
    types = {(str(n.inputs[1].type), str(n.inputs[2].type)) for n in linears}
    data, scales = f"{GROUPED} in panels", f"scales of {GROUPED}"
    assert (f"i8[48, 64]{{{data}}}", f"f32[48, 2]{{{scales}}}") in types  # attention's output
    assert (f"i8[100, 48]{{{data}}}", f"f32[100, 2]{{{scales}}}") in types  # the tied head: 32 and 16 columns
    exact, expected = outputs(llama())[ROWS], outputs(entries[0])
    per_channel = outputs(lowered(llama(), "", Scheme.named("int8_int8g0"))[0])
    error, coarser = (np.abs(found - exact).max() / np.abs(exact).max() for found in (expected, per_channel))
    assert 1e-4 < error < 4 / 127 and error < coarser


@pytest.mark.parametrize(
    ("inputs", "scheme", "message"),
    [
        ("%x: f32[T, 8], %w: bf16[4, 8]", "bf16", r"packed_linear in bf16 of f32.T, 8.: expected rows of bf16$"),
        ("%x: bf16[T, 8], %w: f32[4, 8]", "bf16", r"with a weight f32.4, 8.: expected bf16.4, 8.$"),
        ("%x: i8[T, 8]{groups64}, %w: i8[4, 8], %s: f32[8]", "int8", r"expected i8.4, 8. with f32.4.$"),
        ("%x: i8[T, 8]{groups32}, %w: i8[4, 8], %s: f32[4]", "int8", "rows of i8 with a f32 scale for 64 columns"),
        ("%x: bf16[T, 8], %w: bf16[4, 7]", "bf16", "inner dims differ"),
    ],
)
def test_operands_of_another_scheme_are_refused(inputs: str, scheme: str, message: str) -> None:
    operands = ", ".join(part.split(":")[0] for part in inputs.split(", ") if part.startswith("%"))
    body = "graph epilogue { inputs %a: f32[T, 4] outputs %a }"
    linear = f"%y = packed_linear{{scheme={scheme}, epilogue={body}}}({operands}) : f32[T, 4]"
    with pytest.raises(IRError, match=message):
        verify(parse(f"graph g {{\n  dims T in [1, inf]\n  inputs {inputs}\n  {linear}\n  outputs %y\n}}\n"))


def test_only_linears_of_one_scheme_are_joined() -> None:
    captured = llama(1)
    named = {"l0.q.weight": "layers.0.q_proj", "l0.k.weight": "layers.0.k_proj", "l0.v.weight": "layers.0.v_proj"}
    weights = {n.output: n.op.expr for n in captured.nodes if isinstance(n.op, Weight)}
    for node in captured.nodes:
        names = [getattr(weights.get(v), "name", "") for v in node.inputs]
        object.__setattr__(node, "loc", next((named[n] for n in names if n in named), node.loc))
    options = 'choose-formats{others=[At{module="*.k_proj", scheme=bf16}]}'
    schemes = {n.loc: str(n.op.scheme) for n in lowered(captured, options)[0].nodes if isinstance(n.op, PackedLinear)}
    assert schemes["layers.0.q_proj + layers.0.v_proj"] == "int8" and schemes["layers.0.k_proj"] == "bf16"
