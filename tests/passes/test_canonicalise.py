"""Each canonical form, and what looks like it and is not."""

from __future__ import annotations

import pytest

from llmc.ir.graph import IRError
from llmc.ir.ops.pointwise import Unary, UnaryFn
from llmc.passes.canonicalise import Canonicalise
from llmc.passes.pattern import Var, unary
from llmc.passes.rewrite import RuleLog, apply_rules, rule

from .golden import golden, graph, reasons, unchanged

PASS = Canonicalise()


def test_drop_cast() -> None:
    before = "inputs %x: f32[T]\n%y = cast{dtype=f32}(%x) : f32[T]\n%z = unary{fn=exp}(%y) : f32[T]\noutputs %z"
    after = "inputs %x: f32[T]\n%z = unary{fn=exp}(%x) : f32[T]\noutputs %z"
    assert golden(PASS, before, after).applied == {"drop-cast": 1}
    unchanged(PASS, "inputs %x: f16[T]\n%y = cast{dtype=f32}(%x) : f32[T]\noutputs %y")


@pytest.mark.parametrize(
    ("start", "middle"),
    [("i32", "i64"), ("f16", "f32"), ("bf16", "f32"), ("bool", "i64"), ("u8", "f32"), ("u8", "i32")],
)
def test_join_casts_through_a_type_that_holds_every_value(start: str, middle: str) -> None:
    before = f"""
        inputs %x: {start}[T]
        %y = cast{{dtype={middle}}}(%x) : {middle}[T]
        %z = cast{{dtype=bf16}}(%y) : bf16[T]
        outputs %z
    """
    after = f"inputs %x: {start}[T]\n%z = cast{{dtype=bf16}}(%x) : bf16[T]\noutputs %z"
    after = after if start != "bf16" else "inputs %x: bf16[T]\noutputs %x"
    assert golden(PASS, before, after).applied["join-casts"] == 1


@pytest.mark.parametrize(
    ("start", "middle"),
    [
        ("f32", "bf16"),
        ("f32", "i64"),
        ("bf16", "i64"),
        ("i64", "f32"),
        ("i64", "i32"),
        ("f32", "bool"),
        ("f16", "bf16"),
    ],
)
def test_casts_that_round_in_between_stay(start: str, middle: str) -> None:
    log = unchanged(
        PASS,
        f"""
        inputs %x: {start}[T]
        %y = cast{{dtype={middle}}}(%x) : {middle}[T]
        %z = cast{{dtype=f32}}(%y) : f32[T]
        %w = unary{{fn=exp}}(%z) : f32[T]
        outputs %w
        """
        if middle != "f32"
        else f"""
        inputs %x: {start}[T]
        %y = cast{{dtype=f32}}(%x) : f32[T]
        %z = cast{{dtype=i32}}(%y) : i32[T]
        outputs %z
        """,
    )
    assert reasons(log, "join-casts") == [f"the cast from {start} to {middle} in between loses values"]


@pytest.mark.parametrize(
    ("power", "after"),
    [
        ("2.0", "%y = binary{fn=mul}(%x, %x) : f32[T]"),
        ("0.5", "%y = unary{fn=sqrt}(%x) : f32[T]"),
        ("-0.5", "%y = unary{fn=rsqrt}(%x) : f32[T]"),
        ("-1.0", "%y = unary{fn=reciprocal}(%x) : f32[T]"),
        ("3.0", "%s = binary{fn=mul}(%x, %x) : f32[T]\n        %y = binary{fn=mul}(%s, %x) : f32[T]"),
    ],
)
def test_small_power(power: str, after: str) -> None:
    before = f"""
        inputs %x: f32[T]
        %n = scalar{{value={power}}}() : f32[]
        %y = binary{{fn=pow}}(%x, %n) : f32[T]
        outputs %y
    """
    log = golden(PASS, before, f"\n        inputs %x: f32[T]\n        {after}\n        outputs %y")
    assert log.applied == {"small-power": 1}


@pytest.mark.parametrize("power", ["2.5", "-2.0", "nan"])
def test_other_powers_stay(power: str) -> None:
    unchanged(
        PASS,
        f"""
        inputs %x: f32[T]
        %n = scalar{{value={power}}}() : f32[]
        %y = binary{{fn=pow}}(%x, %n) : f32[T]
        outputs %y
        """,
    )


def test_a_power_of_the_number_stays() -> None:
    unchanged(
        PASS,
        """
        inputs %x: f32[T]
        %n = scalar{value=2.0}() : f32[]
        %y = binary{fn=pow}(%n, %x) : f32[T]
        outputs %y
        """,
    )


def test_reciprocal_root() -> None:
    before = """
        inputs %x: f32[T], %y: f32[T]
        %one = scalar{value=1.0}() : f32[]
        %a = unary{fn=sqrt}(%x) : f32[T]
        %b = unary{fn=reciprocal}(%a) : f32[T]
        %c = unary{fn=sqrt}(%y) : f32[T]
        %d = binary{fn=div}(%one, %c) : f32[T]
        outputs %b, %d
    """
    after = """
        inputs %x: f32[T], %y: f32[T]
        %b = unary{fn=rsqrt}(%x) : f32[T]
        %d = unary{fn=rsqrt}(%y) : f32[T]
        outputs %b, %d
    """
    assert golden(PASS, before, after).applied["reciprocal-root"] == 2


def test_divide_by_root() -> None:
    before = """
        inputs %x: f32[T, 4], %y: f32[T, 1]
        %a = unary{fn=sqrt}(%y) : f32[T, 1]
        %b = binary{fn=div}(%x, %a) : f32[T, 4]
        outputs %b
    """
    after = """
        inputs %x: f32[T, 4], %y: f32[T, 1]
        %a = unary{fn=rsqrt}(%y) : f32[T, 1]
        %b = binary{fn=mul}(%x, %a) : f32[T, 4]
        outputs %b
    """
    assert golden(PASS, before, after).applied == {"divide-by-root": 1}
    unchanged(
        PASS,
        """
        inputs %x: f32[T, 4], %y: f32[T, 1]
        %a = unary{fn=sqrt}(%y) : f32[T, 1]
        %b = binary{fn=div}(%a, %x) : f32[T, 4]
        outputs %b
        """,
    )


@pytest.mark.parametrize(("fn", "value"), [("mul", 1.0), ("div", 1.0), ("add", 0.0), ("sub", 0.0)])
def test_neutral(fn: str, value: float) -> None:
    text = f"""
        inputs %x: f32[T]
        %n = scalar{{value={{}}}}() : f32[]
        %y = binary{{fn={fn}}}(%x, %n) : f32[T]
        %z = unary{{fn=exp}}(%y) : f32[T]
        outputs %z
    """
    after = "inputs %x: f32[T]\n%z = unary{fn=exp}(%x) : f32[T]\noutputs %z"
    before = text.replace("{value={}}", f"{{value={value}}}")
    assert golden(PASS, before, after).applied == {"neutral": 1}
    unchanged(PASS, text.replace("{value={}}", f"{{value={value + 1}}}"))


@pytest.mark.parametrize(("fn", "value"), [("div", 1.0), ("sub", 0.0)])
def test_not_neutral_on_the_left(fn: str, value: float) -> None:
    unchanged(
        PASS,
        f"""
        inputs %x: f32[T]
        %n = scalar{{value={value}}}() : f32[]
        %y = binary{{fn={fn}}}(%n, %x) : f32[T]
        outputs %y
        """,
    )


def test_cast_before_view_of_integers_only() -> None:
    text = """
        inputs %x: {}[T]
        %v = view{shape=[T, 1]}(%x) : {}[T, 1]
        %c = cast{dtype=f32}(%v) : f32[T, 1]
        outputs %c
    """
    after = """
        inputs %x: i32[T]
        %c = cast{dtype=f32}(%x) : f32[T]
        %v = view{shape=[T, 1]}(%c) : f32[T, 1]
        outputs %v
    """
    assert golden(PASS, text.replace("{}", "i32"), after).applied == {"cast-before-view": 1}
    unchanged(PASS, text.replace("{}", "f16"))


def test_join_views_and_drop_moves() -> None:
    before = """
        inputs %x: f32[T, 6]
        %a = view{shape=[T, 2, 3]}(%x) : f32[T, 2, 3]
        %b = view{shape=[T, 6]}(%a) : f32[T, 6]
        %c = slice{axis=1, start=0, stop=6}(%b) : f32[T, 6]
        %d = expand{shape=[T, 6]}(%c) : f32[T, 6]
        %e = permute{perm=[0, 1]}(%d) : f32[T, 6]
        %f = unary{fn=neg}(%e) : f32[T, 6]
        outputs %f
    """
    after = "inputs %x: f32[T, 6]\n%f = unary{fn=neg}(%x) : f32[T, 6]\noutputs %f"
    assert golden(PASS, before, after).applied == {"join-views": 1, "drop-move": 4}


def test_moves_that_change_something_stay() -> None:
    unchanged(
        PASS,
        """
        inputs %x: f32[T, 3, 3]
        %a = permute{perm=[0, 2, 1]}(%x) : f32[T, 3, 3]
        %b = slice{axis=1, start=1, stop=3}(%a) : f32[T, 2, 3]
        %c = view{shape=[T, 6]}(%b) : f32[T, 6]
        outputs %c
        """,
    )


def test_join_permutes_composes_them_in_order() -> None:
    before = """
        inputs %x: f32[2, 3, 5]
        %a = permute{perm=[1, 2, 0]}(%x) : f32[3, 5, 2]
        %b = permute{perm=[0, 2, 1]}(%a) : f32[3, 2, 5]
        outputs %b
    """
    after = "inputs %x: f32[2, 3, 5]\n%b = permute{perm=[1, 0, 2]}(%x) : f32[3, 2, 5]\noutputs %b"
    assert golden(PASS, before, after).applied == {"join-permutes": 1}


def test_outer_product() -> None:
    text = """
        inputs %x: f32[T, 3, {}], %y: f32[T, {}, 4]
        %z = mat_mul(%x, %y) : f32[T, 3, 4]
        outputs %z
    """
    after = """
        inputs %x: f32[T, 3, 1], %y: f32[T, 1, 4]
        %z = binary{fn=mul}(%x, %y) : f32[T, 3, 4]
        outputs %z
    """
    assert golden(PASS, text.replace("{}", "1"), after).applied == {"outer-product": 1}
    unchanged(PASS, text.replace("{}", "2"))


def test_constants_fold_into_a_weight() -> None:
    before = """
        inputs %x: f32[T, 4]
        %w = weight{expr=Source{name="w", dtype=f32, shape=[4]}}() : f32[4]
        %one = scalar{value=1.0}() : f32[]
        %s = binary{fn=add}(%w, %one) : f32[4]
        %v = view{shape=[1, 4]}(%s) : f32[1, 4]
        %y = binary{fn=mul}(%x, %v) : f32[T, 4]
        outputs %y
    """
    after = """
        inputs %x: f32[T, 4]
        %w = weight{expr=Apply{op=view{shape=[1, 4]}, args=[Apply{op=binary{fn=add}, args=[\
Source{name="w", dtype=f32, shape=[4]}, Literal{value=1.0}]}]}}() : f32[1, 4]
        %y = binary{fn=mul}(%x, %w) : f32[T, 4]
        outputs %y
    """
    golden(PASS, before, after)


def test_a_view_to_symbolic_dims_does_not_fold() -> None:
    unchanged(
        PASS,
        """
        inputs %x: f32[T]
        %w = weight{expr=Source{name="w", dtype=f32, shape=[4]}}() : f32[4]
        %e = expand{shape=[T, 4]}(%w) : f32[T, 4]
        %v = view{shape=[4*T]}(%e) : f32[4*T]
        outputs %v
        """,
    )


def test_arithmetic_of_numbers_is_a_number() -> None:
    before = """
        inputs %x: f32[T]
        %a = scalar{value=64.0}() : f32[]
        %b = unary{fn=sqrt}(%a) : f32[]
        %c = binary{fn=div}(%b, %a) : f32[]
        %d = cast{dtype=f32}(%c) : f32[]
        %y = binary{fn=mul}(%x, %d) : f32[T]
        outputs %y
    """
    after = "inputs %x: f32[T]\n%d = scalar{value=0.125}() : f32[]\n%y = binary{fn=mul}(%x, %d) : f32[T]\noutputs %y"
    golden(PASS, before, after)


def test_constants_without_a_source_fold_where_their_shape_is_known() -> None:
    before = """
        inputs %x: f32[T, 3]
        %n = arange{size=3}() : i64[3]
        %f = cast{dtype=f32}(%n) : f32[3]
        %z = scalar{value=2.0}() : f32[]
        %e = expand{shape=[3]}(%z) : f32[3]
        %s = binary{fn=mul}(%f, %e) : f32[3]
        %y = binary{fn=add}(%x, %s) : f32[T, 3]
        outputs %y
    """
    after = """
        inputs %x: f32[T, 3]
        %s = weight{expr=Apply{op=binary{fn=mul}, args=[Apply{op=cast{dtype=f32}, args=[Apply{op=arange{size=3}, \
args=[]}]}, Apply{op=expand{shape=[3]}, args=[Literal{value=2.0}]}]}}() : f32[3]
        %y = binary{fn=add}(%x, %s) : f32[T, 3]
        outputs %y
    """
    golden(PASS, before, after)


def test_equal_nodes_merge() -> None:
    before = """
        inputs %x: f32[T]
        %a = unary{fn=exp}(%x) : f32[T]
        %b = unary{fn=exp}(%x) : f32[T]
        %c = binary{fn=sub}(%a, %b) : f32[T]
        outputs %c
    """
    after = """
        inputs %x: f32[T]
        %a = unary{fn=exp}(%x) : f32[T]
        %c = binary{fn=sub}(%a, %a) : f32[T]
        outputs %c
    """
    golden(PASS, before, after)
    unchanged(PASS, before.replace("%b = unary{fn=exp}", "%b = unary{fn=neg}"))


def test_zeros_of_two_signs_do_not_merge() -> None:
    unchanged(
        PASS,
        """
        inputs %x: f32[T]
        %a = scalar{value=0.0}() : f32[]
        %b = scalar{value=-0.0}() : f32[]
        %c = binary{fn=maximum}(%x, %a) : f32[T]
        %d = binary{fn=div}(%c, %b) : f32[T]
        outputs %d
        """,
    )


def test_rules_that_undo_each_other_are_reported() -> None:
    @rule("exp => neg", unary(UnaryFn.EXP, Var("x")))
    def there(m, b):  # type: ignore[no-untyped-def]
        return b.add(Unary(UnaryFn.NEG), m.values["x"])

    @rule("neg => exp", unary(UnaryFn.NEG, Var("x")))
    def back(m, b):  # type: ignore[no-untyped-def]
        return b.add(Unary(UnaryFn.EXP), m.values["x"])

    text = "inputs %x: f32[T]\n%y = unary{fn=exp}(%x) : f32[T]\noutputs %y"
    with pytest.raises(IRError, match="two of them undo each other: back, there"):
        apply_rules(graph(text), [*there, *back], RuleLog())
