"""Invalid graphs are found, with the node and what is wrong with it."""

from __future__ import annotations

import pytest

from llmc.ir.graph import Graph, IRError, Node, Value
from llmc.ir.ops.pointwise import Unary, UnaryFn
from llmc.ir.parser import parse
from llmc.ir.types import DType, TensorType
from llmc.ir.verify import verify

CACHE = "inputs %kv: kv, %k: f32[T, 2, 8], %p: i32[T]\n"
WRITE = "%{} = kv_write{{slot={}}}(%{}, %k, %k, %p, %p) : kv\n"
READ = "%{} = paged_attention{{slot=0, scale=1.0, num_kv_heads=2, value_dim=8}}(%{}, %k, %p, %p) : f32[T, 2, 8]\n"


def graph(text: str) -> Graph:
    return parse(f"graph main {{\ndims T in [1, inf], R in [1, inf]\n{text}\n}}")


def test_effects_in_order_are_valid() -> None:
    verify(
        graph(
            CACHE
            + READ.format("z", "kv")
            + WRITE.format("a", 0, "kv")
            + READ.format("y", "a")
            + WRITE.format("b", 1, "a")
        )
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            CACHE + WRITE.format("a", 0, "kv") + READ.format("y", "kv"),
            "paged_attention at no module: uses cache state %kv after",
        ),
        (
            CACHE + WRITE.format("a", 0, "kv") + WRITE.format("b", 1, "kv"),
            "kv_write at no module: uses cache state %kv after",
        ),
        (
            'inputs %x: f32[T]\n%y = unary{fn=exp}(%x) : f32[R] @ "m"',
            r"unary at m: infers \(f32\[T\]\), its outputs are \(f32\[R\]\)",
        ),
        ("inputs %x: f32[T]\n%y = binary{fn=add}(%x) : f32[T]", "binary at no module: expected 2 tensors"),
        ("inputs %x: f32[T], %z: f16[T]\n%y = binary{fn=add}(%x, %z) : f32[T]", "dtypes differ"),
        ("inputs %x: f32[T], %z: f32[R]\n%y = binary{fn=add}(%x, %z) : f32[T]", "do not broadcast: T against R"),
        ("inputs %x: f32[T, 4]\n%y = view{shape=[T, 5]}(%x) : f32[T, 5]", r"4\*T elements against 5\*T"),
        ("inputs %x: f32[T, 4]\n%y = permute{perm=[0, 0]}(%x) : f32[T, 4]", "not a permutation of its 2 axes"),
        ("inputs %x: f32[T, 4]\n%y = expand{shape=[T, 8]}(%x) : f32[T, 8]", "only dims of 1 can grow"),
        ("inputs %x: f32[T, 4]\n%y = slice{axis=1, start=2, stop=5}(%x) : f32[T, 3]", "outside it"),
        ("inputs %x: f32[T, 4]\n%y = slice{axis=0, start=0, stop=1}(%x) : f32[1, 4]", "outside it"),
        ("inputs %x: f32[T, 4]\n%y = slice{axis=2, start=0, stop=1}(%x) : f32[T, 4]", "axis 2 of"),
        (
            "inputs %x: f32[T, 4], %z: f32[T, 5]\n%y = concat{axis=0}(%x, %z) : f32[2*T, 4]",
            "other dims or dtypes differ",
        ),
        ("inputs %x: f32[T, 4]\n%y = concat{axis=2}(%x, %x) : f32[T, 4]", "axis 2 of"),
        ("inputs %x: f32[T, 4]\n%y = concat{axis=0}() : f32[T, 4]", "concat of nothing"),
        ("inputs %x: f32[T, 4]\n%y = reduce{fn=sum, axis=2}(%x) : f32[T, 4]", "reduce over axis 2"),
        ("inputs %x: f32[T, 4], %w: f32[3, 5]\n%y = linear(%x, %w) : f32[T, 3]", r"expected weight \[N, 4\]"),
        ("inputs %x: f32[T, 4], %w: f32[3, 4], %b: f32[4]\n%y = linear(%x, %w, %b) : f32[T, 3]", r"expected one \[3\]"),
        ("inputs %x: f32[T]\n%y = rope{style=half}(%x, %x, %x) : f32[T]", "expected .T, heads, D. and two"),
        (
            "inputs %x: f32[T, 1, 4], %c: f32[T, 3]\n%y = rope{style=half}(%x, %c, %c) : f32[T, 1, 4]",
            "rotates more dims",
        ),
        (
            "inputs %q: f32[T, 3, 4], %k: f32[T, 2, 4], %p: i32[T]\n"
            "%y = attention{scale=1.0}(%q, %k, %k, %p, %p) : f32[T, 3, 4]",
            "not a multiple of kv heads",
        ),
        (
            "inputs %t: i8[5, 4], %i: i32[T]\n%y = embedding(%t, %i) : f32[T, 4]",
            "integers without a scheme",
        ),
        ("inputs %x: f32[T, 4], %r: f32[R]\n%y = gather_rows(%x, %r) : f32[R, 4]", "expected i32"),
        (
            "inputs %x: f32[T, 4]\n%y = rows{body=graph r {\n inputs %a: f32[T, 5]\n outputs %a\n}}(%x) : f32[T, 5]",
            "body takes",
        ),
        (
            "inputs %x: f32[T]\n%y = rows{body=graph r {\n inputs %a: f32[T]\n"
            " %b = unary{fn=exp}(%a) : f32[R]\n outputs %b\n}}(%x) : f32[R]",
            "graph r: unary at no module: infers",
        ),
        (
            "inputs %x: f32[T]\n%y = rows{body=graph r {\n inputs %a: f32[T]\n outputs %x\n}}(%x) : f32[T]",
            "graph r: output %x is not defined",
        ),
    ],
)
def test_invalid(text: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        verify(graph(text))


def test_definitions() -> None:
    kind = TensorType(DType.F32, ())
    x, y = Value(kind, "x"), Value(kind, "y")
    node = Node(Unary(UnaryFn.EXP), (x,), (y,), "m")
    for bad, message in [
        (Graph("g", (), (y,), (node,)), "uses %x, which is not defined before it"),
        (Graph("g", (x,), (), (node, node)), "defines %y a second time"),
        (Graph("g", (x, x), (), ()), "input %x is defined twice"),
        (Graph("g", (x,), (y,), ()), "output %y is not defined"),
        (Graph("g", (x, y), (), (node,)), "defines %y a second time"),
    ]:
        with pytest.raises(IRError, match=message):
            verify(bad)
