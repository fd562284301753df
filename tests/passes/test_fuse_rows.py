"""Row-wise nodes between barriers become one kernel for each kind of row."""

from __future__ import annotations

import pytest

from llmc.ir.graph import IRError
from llmc.ir.ops.kernel import Rows
from llmc.passes.fuse_rows import FuseRows
from llmc.passes.rewrite import RuleLog

from .golden import applied, golden, graph

PASS = FuseRows()
LINEAR = """packed_linear{scheme=f32, epilogue=graph epilogue {
      inputs %p: f32[ROWS, 8]
      outputs %p
    }}"""


def linear(rows: str = "T") -> str:
    return LINEAR.replace("ROWS", rows)


WEIGHT = '%w = weight{expr=Source{name="w", dtype=f32, shape=[8, 8]}}() : f32[8, 8]'


def test_a_stage_before_and_after_a_linear() -> None:
    before = f"""
        inputs %x: f32[T, 8], %g: f32[8]
        %eps = scalar{{value=2.0}}() : f32[]
        {WEIGHT}
        %n = rms_norm{{eps=1e-06}}(%x, %g) : f32[T, 8] @ "norm"
        %h = binary{{fn=mul}}(%n, %eps) : f32[T, 8] @ "scale"
        %y = {linear()}(%h, %w) : f32[T, 8] @ "fc"
        %r = binary{{fn=add}}(%y, %x) : f32[T, 8]
        %s = binary{{fn=mul}}(%r, %h) : f32[T, 8]
        outputs %r, %s
    """
    after = f"""
        inputs %x: f32[T, 8], %g: f32[8]
        {WEIGHT}
        %h = rows{{body=graph rows {{
          inputs %a: f32[T, 8], %b: f32[8]
          %eps = scalar{{value=2.0}}() : f32[]
          %n = rms_norm{{eps=1e-06}}(%a, %b) : f32[T, 8] @ "norm"
          %h = binary{{fn=mul}}(%n, %eps) : f32[T, 8] @ "scale"
          outputs %h
        }}}}(%x, %g) : f32[T, 8] @ "norm + scale"
        %y = {linear()}(%h, %w) : f32[T, 8] @ "fc"
        %r, %s = rows{{body=graph rows {{
          inputs %a: f32[T, 8], %b: f32[T, 8], %c: f32[T, 8]
          %r = binary{{fn=add}}(%a, %b) : f32[T, 8]
          %s = binary{{fn=mul}}(%r, %c) : f32[T, 8]
          outputs %r, %s
        }}}}(%y, %x, %h) : f32[T, 8], f32[T, 8]
        outputs %r, %s
    """
    assert golden(PASS, before, after).applied == {"fuse-rows": 2}


def test_all_rows_and_sampled_rows_are_kernels_of_their_own() -> None:
    before = """
        inputs %x: f32[T, 8], %rows: i32[R]
        %a = unary{fn=exp}(%x) : f32[T, 8]
        %b = gather_rows(%a, %rows) : f32[R, 8]
        %c = unary{fn=neg}(%b) : f32[R, 8]
        outputs %c
    """
    after = """
        inputs %x: f32[T, 8], %rows: i32[R]
        %a = rows{body=graph rows {
          inputs %p: f32[T, 8]
          %a = unary{fn=exp}(%p) : f32[T, 8]
          outputs %a
        }}(%x) : f32[T, 8]
        %c = rows{body=graph rows {
          inputs %p: f32[T, 8], %q: i32[R]
          %b = gather_rows(%p, %q) : f32[R, 8]
          %c = unary{fn=neg}(%b) : f32[R, 8]
          outputs %c
        }}(%a, %rows) : f32[R, 8]
        outputs %c
    """
    golden(PASS, before, after)


def test_writes_stay_in_order_and_states_leave() -> None:
    text = """
        inputs %kv: kv, %q: f32[T, 2, 8], %k: f32[T, 2, 8], %p: i32[T], %s: i32[T]
        %k2 = unary{fn=neg}(%k) : f32[T, 2, 8]
        %c = kv_write{slot=0}(%kv, %k, %k, %p, %s) : kv
        %a = paged_attention{slot=0, scale=1.0, num_kv_heads=2, value_dim=8}(%c, %q, %p, %s) : f32[T, 2, 8]
        %d = kv_write{slot=1}(%c, %k2, %k2, %p, %s) : kv
        %b = paged_attention{slot=1, scale=1.0, num_kv_heads=2, value_dim=8}(%d, %q, %p, %s) : f32[T, 2, 8]
        outputs %a, %b, %d
    """
    fused = PASS.run(graph(text), RuleLog())
    assert [n.op.mnemonic() for n in fused.nodes] == ["rows", "paged_attention", "paged_attention"]
    body = fused.nodes[0].op
    assert isinstance(body, Rows)
    assert [n.op.mnemonic() for n in body.body.nodes] == ["unary", "kv_write", "kv_write"]
    assert [str(v.type) for v in body.body.outputs] == ["kv", "kv"]


def test_values_without_rows_are_refused() -> None:
    text = 'inputs %x: f32[8]\n%y = unary{fn=exp}(%x) : f32[8] @ "m"\noutputs %y'
    with pytest.raises(IRError, match=r"graph main: unary at m gives f32\[8\], which has no rows"):
        applied(PASS, text)


def test_rows_that_read_each_other_are_refused() -> None:
    text = """
        inputs %x: f32[T, 8], %rows: i32[R], %back: i32[T]
        %a = gather_rows(%x, %rows) : f32[R, 8]
        %b = gather_rows(%a, %back) : f32[T, 8]
        %c = gather_rows(%b, %rows) : f32[R, 8]
        outputs %c
    """
    with pytest.raises(IRError, match="one of their nodes mixes rows"):
        applied(PASS, text)
