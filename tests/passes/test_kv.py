"""Attention on whole sequences becomes a write to and a read from the cache."""

from __future__ import annotations

import pytest

from llmc.ir.types import DType
from llmc.passes.kv import KvLayout

from .golden import golden

TWO = """
    inputs %q: f32[T, 4, 8], %k: f32[T, 2, 8], %v: f32[T, 2, 6], %w: f32[T, 2, 6], %s: f32[4], %p: i32[T], %n: i32[T]
    %a = attention{scale=0.5, mask=Mask{window=4}, softcap=30.0}(%q, %k, %v, %p, %n) : f32[T, 4, 6] @ "layers.0"
    %b = attention{scale=0.5, has_sinks=true}(%q, %k, %VALUE, %p, %n, %s) : f32[T, 4, 6] @ "layers.1"
    outputs %a, %b
"""


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_a_slot_for_each_pair_of_keys_and_values(dtype: DType) -> None:
    kind = "" if dtype is DType.F32 else ", dtype=bf16"
    after = f"""
        inputs %q: f32[T, 4, 8], %k: f32[T, 2, 8], %v: f32[T, 2, 6], %w: f32[T, 2, 6], %s: f32[4], %p: i32[T], \
%n: i32[T], %kv: kv
        %c = kv_write{{slot=0{kind}}}(%kv, %k, %v, %p, %n) : kv @ "layers.0"
        %a = paged_attention{{slot=0, scale=0.5, num_kv_heads=2, value_dim=6, mask=Mask{{window=4}}, softcap=30.0}}\
(%c, %q, %p, %n) : f32[T, 4, 6] @ "layers.0"
        %d = kv_write{{slot=1{kind}}}(%c, %k, %w, %p, %n) : kv @ "layers.1"
        %b = paged_attention{{slot=1, scale=0.5, num_kv_heads=2, value_dim=6, has_sinks=true}}(%d, %q, %p, %n, %s) : \
f32[T, 4, 6] @ "layers.1"
        outputs %a, %b, %d
    """
    assert golden(KvLayout(dtype), TWO.replace("%VALUE", "%w"), after).applied == {"kv-layout": 2}


def test_layers_that_share_keys_and_values_share_a_slot() -> None:
    after = """
        inputs %q: f32[T, 4, 8], %k: f32[T, 2, 8], %v: f32[T, 2, 6], %w: f32[T, 2, 6], %s: f32[4], %p: i32[T], \
%n: i32[T], %kv: kv
        %c = kv_write{slot=0}(%kv, %k, %v, %p, %n) : kv @ "layers.0"
        %a = paged_attention{slot=0, scale=0.5, num_kv_heads=2, value_dim=6, mask=Mask{window=4}, softcap=30.0}\
(%c, %q, %p, %n) : f32[T, 4, 6] @ "layers.0"
        %b = paged_attention{slot=0, scale=0.5, num_kv_heads=2, value_dim=6, has_sinks=true}(%c, %q, %p, %n, %s) : \
f32[T, 4, 6] @ "layers.1"
        outputs %a, %b, %c
    """
    golden(KvLayout(DType.F32), TWO.replace("%VALUE", "%v"), after)


def test_a_graph_without_attention_gets_an_unwritten_cache() -> None:
    before = "inputs %x: f32[T]\n%y = unary{fn=exp}(%x) : f32[T]\noutputs %y"
    after = "inputs %x: f32[T], %kv: kv\n%y = unary{fn=exp}(%x) : f32[T]\noutputs %y, %kv"
    assert not golden(KvLayout(DType.F32), before, after).applied
