"""Attention writes what the next linear reads, where nothing else reads it."""

from __future__ import annotations

import pytest

from llmc.ir.types import DType
from llmc.passes.fuse_attention import FuseAttention
from llmc.passes.kv import KvLayout

from .golden import golden

HEAD = "inputs %c: kv, %q: bf16[T, 4, 8], %p: i32[T], %n: i32[T]\n"
READ = "paged_attention{{slot=0, scale=0.5, num_kv_heads=2, value_dim=6{}}}(%c, %q, %p, %n)"


def test_heads_are_joined_and_rounded() -> None:
    before = f"""
        {HEAD}
        %a = {READ.format("")} : f32[T, 4, 6] @ "layers.0"
        %j = view{{shape=[T, 24]}}(%a) : f32[T, 24] @ "layers.0"
        %r = cast{{dtype=bf16}}(%j) : bf16[T, 24] @ "layers.0"
        outputs %r
    """
    after = f"""
        {HEAD}
        %r = {READ.format(", result=bf16, joined=true")} : bf16[T, 24] @ "layers.0"
        outputs %r
    """
    assert golden(FuseAttention(), before, after).applied == {"fuse-attention-view": 1, "fuse-attention-cast": 1}


@pytest.mark.parametrize(
    "rest",
    [
        "%j = view{shape=[T, 24]}(%a) : f32[T, 24]\noutputs %j, %a",  # the heads leave too
        "%j = view{shape=[T, 2, 12]}(%a) : f32[T, 2, 12]\noutputs %j",  # other rows than the heads joined
        "%j = unary{fn=exp}(%a) : f32[T, 4, 6]\n%k = cast{dtype=bf16}(%j) : bf16[T, 4, 6]\noutputs %k",
        "%j = cast{dtype=i32}(%a) : i32[T, 4, 6]\noutputs %j",  # no rounding of a float
        "%j = cast{dtype=bf16}(%a) : bf16[T, 4, 6]\n%k = unary{fn=exp}(%a) : f32[T, 4, 6]\noutputs %j, %k",
    ],
)
def test_what_others_read_stays(rest: str) -> None:
    text = f"{HEAD}%a = {READ.format('')} : f32[T, 4, 6]\n{rest}"
    assert not golden(FuseAttention(), text, text).applied


def test_a_second_rounding_is_not_taken_in() -> None:
    """Through bf16 to f16 is not f16."""
    read = f"%a = {READ.format(', result=bf16')} : bf16[T, 4, 6]"
    text = f"{HEAD}{read}\n%j = cast{{dtype=f16}}(%a) : f16[T, 4, 6]\noutputs %j"
    assert not golden(FuseAttention(), text, text).applied


def test_queries_in_the_cache_s_format() -> None:
    before = """
        inputs %q: f32[T, 4, 8], %k: f32[T, 2, 8], %v: f32[T, 2, 6], %p: i32[T], %n: i32[T]
        %a = attention{scale=0.5}(%q, %k, %v, %p, %n) : f32[T, 4, 6] @ "layers.0"
        outputs %a
    """
    after = f"""
        inputs %q: f32[T, 4, 8], %k: f32[T, 2, 8], %v: f32[T, 2, 6], %p: i32[T], %n: i32[T], %kv: kv
        %c = kv_write{{slot=0, dtype=f16}}(%kv, %k, %v, %p, %n) : kv @ "layers.0"
        %r = cast{{dtype=f16}}(%q) : f16[T, 4, 8] @ "layers.0"
        %a = {READ.format("").replace("%q", "%r")} : f32[T, 4, 6] @ "layers.0"
        outputs %a, %c
    """
    golden(KvLayout(DType.F16, DType.F16), before, after)
