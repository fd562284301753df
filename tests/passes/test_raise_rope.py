"""Rotary positions out of the spellings of HF's modules, and neighbours that rotate something else."""

from __future__ import annotations

import pytest

from llmc.passes.raise_rope import RaiseRope

from .golden import applied, golden, reasons, unchanged

PASS = RaiseRope()

TABLES = """
    inputs %positions: i32[T], %f: f32[4]
    %p = cast{dtype=f32}(%positions) : f32[T]
    %q = view{shape=[T, 1]}(%p) : f32[T, 1]
    %a = binary{fn=mul}(%q, %f) : f32[T, 4]
    %c = unary{fn=cos}(%a) : f32[T, 4]
    %s = unary{fn=sin}(%a) : f32[T, 4]
    outputs %c, %s
"""


def test_tables() -> None:
    after = """
        inputs %positions: i32[T], %f: f32[4]
        %c, %s0 = rope_table(%positions, %f) : f32[T, 4], f32[T, 4]
        %c0, %s = rope_table(%positions, %f) : f32[T, 4], f32[T, 4]
        outputs %c, %s
    """
    assert golden(PASS, TABLES, after).applied == {"cos-table": 1, "sin-table": 1}


def test_tables_in_the_other_order() -> None:
    log = applied(PASS, TABLES.replace("mul}(%q, %f)", "mul}(%f, %q)"))
    assert log.applied == {"cos-table": 1, "sin-table": 1}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("%positions: i32[T]", "%positions: i64[T]", "i64[T] times f32[4]"),
        ("%f: f32[4]", "%f: f32[T, 4]", "i32[T] times f32[T, 4]"),
    ],
)
def test_other_products_are_no_tables(old: str, new: str, reason: str) -> None:
    log = unchanged(PASS, TABLES.replace(old, new))
    assert reasons(log, "cos-table") == [f"{reason} are not positions [T] times frequencies [R/2]"]


def test_frequencies_of_another_dtype_are_refused() -> None:
    log = unchanged(PASS, TABLES.replace("f32", "f16"))
    assert reasons(log, "sin-table") == ["i32[T] times f16[4] are not positions [T] times frequencies [R/2]"]


def test_a_table_of_more_axes_is_refused() -> None:
    text = TABLES.replace("view{shape=[T, 1]}", "view{shape=[T, 1, 1]}").replace("f32[T, 1]", "f32[T, 1, 1]")
    log = unchanged(PASS, text.replace("f32[T, 4]", "f32[T, 1, 4]"))
    assert reasons(log, "cos-table") == ["the product is f32[T, 1, 4], a table would be [T, R/2]"]


def test_functions_move_inside_a_repetition() -> None:
    before = """
        inputs %x: f32[T, 4]
        %n = scalar{value=1.5}() : f32[]
        %t = concat{axis=1}(%x, %x) : f32[T, 8]
        %c = unary{fn=cos}(%t) : f32[T, 8]
        %y = binary{fn=mul}(%c, %n) : f32[T, 8]
        outputs %y
    """
    after = """
        inputs %x: f32[T, 4]
        %n = scalar{value=1.5}() : f32[]
        %c = unary{fn=cos}(%x) : f32[T, 4]
        %y = binary{fn=mul}(%c, %n) : f32[T, 4]
        %t = concat{axis=1}(%y, %y) : f32[T, 8]
        outputs %t
    """
    assert golden(PASS, before, after).applied == {"unary-of-repeat": 1, "scaled-repeat": 1}


def test_functions_of_two_values_stay_outside() -> None:
    text = """
        inputs %x: f32[T, 4], %z: f32[T, 4]
        %t = concat{axis=1}(%x, %z) : f32[T, 8]
        %c = unary{fn=cos}(%t) : f32[T, 8]
        outputs %c
    """
    unchanged(PASS, text)
    unchanged(PASS, text.replace("unary{fn=cos}(%t)", "binary{fn=mul}(%t, %t)"))


INTERLEAVED_REPEAT = """
    %x1 = view{shape=[T, 4, 1]}(%x) : f32[T, 4, 1]
    %x2 = expand{shape=[T, 4, 2]}(%x1) : f32[T, 4, 2]
    %x3 = view{shape=[T, 8]}(%x2) : f32[T, 8]
"""


def test_functions_move_inside_an_interleaved_repetition() -> None:
    before = f"""
        inputs %x: f32[T, 4]
        %n = scalar{{value=1.5}}() : f32[]
        {INTERLEAVED_REPEAT}
        %c = unary{{fn=sin}}(%x3) : f32[T, 8]
        %y = binary{{fn=mul}}(%n, %c) : f32[T, 8]
        outputs %y
    """
    after = """
        inputs %x: f32[T, 4]
        %n = scalar{value=1.5}() : f32[]
        %c = unary{fn=sin}(%x) : f32[T, 4]
        %y = binary{fn=mul}(%c, %n) : f32[T, 4]
        %x1 = view{shape=[T, 4, 1]}(%y) : f32[T, 4, 1]
        %x2 = expand{shape=[T, 4, 2]}(%x1) : f32[T, 4, 2]
        %x3 = view{shape=[T, 8]}(%x2) : f32[T, 8]
        outputs %x3
    """
    log = golden(PASS, before, after)
    assert log.applied == {"unary-of-interleaved-repeat": 1, "scaled-interleaved-repeat": 1}


HALF = """
    inputs %x: f32[T, 2, 8], %c: f32[T, 4], %s: f32[T, 4]
    %cc = concat{axis=1}(%c, %c) : f32[T, 8]
    %cv = view{shape=[T, 1, 8]}(%cc) : f32[T, 1, 8]
    %ss = concat{axis=1}(%s, %s) : f32[T, 8]
    %sv = view{shape=[T, 1, 8]}(%ss) : f32[T, 1, 8]
    %lo = slice{axis=2, start=0, stop=4}(%x) : f32[T, 2, 4]
    %hi = slice{axis=2, start=4, stop=8}(%x) : f32[T, 2, 4]
    %no = unary{fn=neg}(%hi) : f32[T, 2, 4]
    %r = concat{axis=2}(%no, %lo) : f32[T, 2, 8]
    %a = binary{fn=mul}(%x, %cv) : f32[T, 2, 8]
    %b = binary{fn=mul}(%r, %sv) : f32[T, 2, 8]
    %y = binary{fn=add}(%a, %b) : f32[T, 2, 8]
    outputs %y
"""
ROTATED = """
    inputs %x: f32[T, 2, 8], %c: f32[T, 4], %s: f32[T, 4]
    %y = rope{style=STYLE}(%x, %c, %s) : f32[T, 2, 8]
    outputs %y
"""


@pytest.mark.parametrize(
    ("old", "new"), [("", ""), ("add}(%a, %b)", "add}(%b, %a)"), ("mul}(%r, %sv)", "mul}(%sv, %r)")]
)
def test_half_rope(old: str, new: str) -> None:
    log = golden(PASS, HALF.replace(old, new), ROTATED.replace("STYLE", "half"))
    assert log.applied == {"half-rope": 1}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("concat{axis=2}(%no, %lo)", "concat{axis=2}(%lo, %no)"),  # rotates the other way
        ("unary{fn=neg}(%hi)", "unary{fn=abs}(%hi)"),
        ("unary{fn=neg}(%hi)", "unary{fn=neg}(%lo)"),
        ("binary{fn=add}", "binary{fn=sub}"),
        ("concat{axis=1}(%s, %s)", "concat{axis=1}(%s, %c)"),
    ],
)
def test_other_rotations_stay(old: str, new: str) -> None:
    assert not applied(PASS, HALF.replace(old, new)).applied


def test_halves_that_the_table_does_not_rotate_are_refused() -> None:
    text = HALF.replace("start=4, stop=8", "start=0, stop=8, step=2")
    assert reasons(unchanged(PASS, text), "half-rope") == [
        "the halves of f32[T, 2, 8] are not those that a table of 4 rotates"
    ]


def test_a_table_per_head_is_refused() -> None:
    text = HALF.replace("%c: f32[T, 4], %s: f32[T, 4]", "%c: f32[T, 2, 4], %s: f32[T, 2, 4]")
    text = text.replace("axis=1}(%c, %c) : f32[T, 8]", "axis=2}(%c, %c) : f32[T, 2, 8]")
    text = text.replace("axis=1}(%s, %s) : f32[T, 8]", "axis=2}(%s, %s) : f32[T, 2, 8]")
    text = text.replace("shape=[T, 1, 8]", "shape=[T, 2, 8]").replace("f32[T, 1, 8]", "f32[T, 2, 8]")
    assert reasons(unchanged(PASS, text), "half-rope") == ["the tables are f32[T, 2, 4] and f32[T, 2, 4], not [T, R/2]"]


OTHER_AXES = "f32[T, 4] or the halves of f32[T, 2, 8] are joined along another axis than the last"


@pytest.mark.parametrize("table", ["c", "s"])
def test_a_table_repeated_along_the_tokens_is_refused(table: str) -> None:
    """[c(0) c(1)], [c(2) c(3)] ...: as many elements as [c c], of other tokens."""
    old = f"concat{{axis=1}}(%{table}, %{table}) : f32[T, 8]"
    text = HALF.replace(old, f"concat{{axis=0}}(%{table}, %{table}) : f32[2*T, 4]")
    assert reasons(unchanged(PASS, text), "half-rope") == [OTHER_AXES]


@pytest.mark.parametrize("table", ["c", "s"])
def test_a_table_that_turns_heads_is_refused(table: str) -> None:
    """A factor for each of 8 heads, where 8 is also a head's width."""
    text = HALF.replace("f32[T, 2, 8]", "f32[T, 8, 8]").replace("f32[T, 2, 4]", "f32[T, 8, 4]")
    old = f"view{{shape=[T, 1, 8]}}(%{table}{table}) : f32[T, 1, 8]"
    text = text.replace(old, f"view{{shape=[T, 8, 1]}}(%{table}{table}) : f32[T, 8, 1]")
    assert reasons(unchanged(PASS, text), "half-rope") == [OTHER_AXES.replace("[T, 2, 8]", "[T, 8, 8]")]


def test_halves_joined_along_the_heads_are_refused() -> None:
    """[-x1], [x0] as two heads of one: only a head of two dims is broadcast to a type that fits."""
    text = """
        inputs %x: f32[T, 1, 2], %c: f32[T, 1], %s: f32[T, 1]
        %cc = concat{axis=1}(%c, %c) : f32[T, 2]
        %cv = view{shape=[T, 1, 2]}(%cc) : f32[T, 1, 2]
        %ss = concat{axis=1}(%s, %s) : f32[T, 2]
        %sv = view{shape=[T, 1, 2]}(%ss) : f32[T, 1, 2]
        %lo = slice{axis=2, start=0, stop=1}(%x) : f32[T, 1, 1]
        %hi = slice{axis=2, start=1, stop=2}(%x) : f32[T, 1, 1]
        %no = unary{fn=neg}(%hi) : f32[T, 1, 1]
        %r = concat{axis=1}(%no, %lo) : f32[T, 2, 1]
        %a = binary{fn=mul}(%x, %cv) : f32[T, 1, 2]
        %b = binary{fn=mul}(%r, %sv) : f32[T, 2, 2]
        %y = binary{fn=add}(%a, %b) : f32[T, 2, 2]
        outputs %y
    """
    assert reasons(unchanged(PASS, text), "half-rope") == [
        "f32[T, 1] or the halves of f32[T, 1, 2] are joined along another axis than the last"
    ]


def repeated(table: str, flat: bool) -> str:
    lines = f"%{table}1 = view{{shape=[T, 4, 1]}}(%{table}) : f32[T, 4, 1]\n    "
    lines += f"%{table}2 = expand{{shape=[T, 4, 2]}}(%{table}1) : f32[T, 4, 2]\n    "
    if flat:
        lines += f"%{table}3 = view{{shape=[T, 8]}}(%{table}2) : f32[T, 8]\n    "
    return lines + f"%{table}v = view{{shape=[T, 1, 8]}}(%{table}{3 if flat else 2}) : f32[T, 1, 8]"


def interleaved(flat: bool) -> str:
    return f"""
    inputs %x: f32[T, 2, 8], %c: f32[T, 4], %s: f32[T, 4]
    {repeated("c", flat)}
    {repeated("s", flat)}
    %ev = slice{{axis=2, start=0, stop=8, step=2}}(%x) : f32[T, 2, 4]
    %od = slice{{axis=2, start=1, stop=8, step=2}}(%x) : f32[T, 2, 4]
    %no = unary{{fn=neg}}(%od) : f32[T, 2, 4]
    %o1 = view{{shape=[T, 2, 4, 1]}}(%no) : f32[T, 2, 4, 1]
    %e1 = view{{shape=[T, 2, 4, 1]}}(%ev) : f32[T, 2, 4, 1]
    %st = concat{{axis=3}}(%o1, %e1) : f32[T, 2, 4, 2]
    %r = view{{shape=[T, 2, 8]}}(%st) : f32[T, 2, 8]
    %a = binary{{fn=mul}}(%x, %cv) : f32[T, 2, 8]
    %b = binary{{fn=mul}}(%r, %sv) : f32[T, 2, 8]
    %y = binary{{fn=add}}(%a, %b) : f32[T, 2, 8]
    outputs %y
    """


@pytest.mark.parametrize("flat", [True, False])
def test_interleaved_rope(flat: bool) -> None:
    log = golden(PASS, interleaved(flat), ROTATED.replace("STYLE", "interleaved"))
    assert log.applied == {"interleaved-rope": 1}


def test_interleaved_near_misses() -> None:
    text = interleaved(False)
    swapped = text.replace("start=0, stop=8, step=2", "start=0, stop=4").replace(
        "start=1, stop=8, step=2", "start=4, stop=8"
    )
    assert reasons(unchanged(PASS, swapped), "interleaved-rope") == [
        "the slices of f32[T, 2, 8] are not its even and odd elements"
    ]
    unchanged(PASS, text.replace("concat{axis=3}(%o1, %e1)", "concat{axis=3}(%e1, %o1)"))


def test_a_table_that_is_not_repeated_in_pairs_is_refused() -> None:
    """[c0 c1 c2 c3 c0 c1 c2 c3]: the interleaved rotation of a table of halves."""
    text = interleaved(False)
    for t in "cs":
        text = text.replace(
            f"view{{shape=[T, 4, 1]}}(%{t}) : f32[T, 4, 1]", f"view{{shape=[T, 1, 4]}}(%{t}) : f32[T, 1, 4]"
        )
        text = text.replace(
            f"expand{{shape=[T, 4, 2]}}(%{t}1) : f32[T, 4, 2]", f"expand{{shape=[T, 2, 4]}}(%{t}1) : f32[T, 2, 4]"
        )
    log = unchanged(PASS, text)
    assert reasons(log, "interleaved-rope") == ["the table f32[T, 4] is not repeated twice to 8"]


@pytest.mark.parametrize("table", ["c", "s"])
def test_one_table_that_is_not_repeated_in_pairs_is_refused(table: str) -> None:
    text = interleaved(True)
    for old, new in (("view{shape=[T, 4, 1]}", "[T, 1, 4]"), ("expand{shape=[T, 4, 2]}", "[T, 2, 4]")):
        mnemonic, shape = old[: old.index("[")], old[old.index("[") : -1]
        source = table if "view" in old else f"{table}1"
        text = text.replace(f"{old}(%{source}) : f32{shape}", f"{mnemonic}{new}}}(%{source}) : f32{new}")
    assert reasons(unchanged(PASS, text), "interleaved-rope") == ["the table f32[T, 4] is not repeated twice to 8"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("concat{axis=3}(%o1, %e1) : f32[T, 2, 4, 2]", "concat{axis=2}(%o1, %e1) : f32[T, 2, 8, 1]"),
        ("concat{axis=3}(%o1, %e1) : f32[T, 2, 4, 2]", "concat{axis=1}(%o1, %e1) : f32[T, 4, 4, 1]"),
        ("concat{axis=3}(%o1, %e1) : f32[T, 2, 4, 2]", "concat{axis=0}(%o1, %e1) : f32[2*T, 2, 4, 1]"),
    ],
)
def test_pairs_stacked_along_another_axis_are_refused(old: str, new: str) -> None:
    """[-x1 -x3 .. x0 x2 ..]: the same elements, which the tables would turn by other angles."""
    log = unchanged(PASS, interleaved(False).replace(old, new))
    assert reasons(log, "interleaved-rope") == ["the odd and even elements of f32[T, 2, 8] are not put side by side"]


def test_pairs_of_rows_are_refused() -> None:
    text = (
        interleaved(True)
        .replace("shape=[T, 2, 4, 1]", "shape=[T, 2, 1, 4]")
        .replace("f32[T, 2, 4, 1]", "f32[T, 2, 1, 4]")
    )
    log = unchanged(PASS, text.replace("(%o1, %e1) : f32[T, 2, 4, 2]", "(%o1, %e1) : f32[T, 2, 1, 8]"))
    assert reasons(log, "interleaved-rope") == ["the odd and even elements of f32[T, 2, 8] are not put side by side"]


PARTIAL = """
    inputs %x: f32[T, 2, 12], %c: f32[T, 4], %s: f32[T, 4]
    %t = slice{axis=2, start=0, stop=8}(%x) : f32[T, 2, 8]
    %p = slice{axis=2, start=8, stop=12}(%x) : f32[T, 2, 4]
    %r = rope{style=half}(%t, %c, %s) : f32[T, 2, 8]
    %y = concat{axis=2}(%r, %p) : f32[T, 2, 12]
    outputs %y
"""


def test_partial_rope() -> None:
    after = ROTATED.replace("STYLE", "half").replace("f32[T, 2, 8]", "f32[T, 2, 12]")
    assert golden(PASS, PARTIAL, after).applied == {"partial-rope": 1}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([("start=8, stop=12", "start=4, stop=8")], "the parts are not a head's first dims and its rest"),
        ([("start=0, stop=8", "start=4, stop=12")], "the parts are not a head's first dims and its rest"),
        (
            [
                ("start=8, stop=12", "start=8, stop=10"),
                ("%p = ", "%p = "),
                ("(%x) : f32[T, 2, 4]", "(%x) : f32[T, 2, 2]"),
                ("(%r, %p) : f32[T, 2, 12]", "(%r, %p) : f32[T, 2, 10]"),
            ],
            "the parts do not make a whole head",
        ),
    ],
)
def test_partial_rope_of_other_parts_is_refused(changes: list[tuple[str, str]], reason: str) -> None:
    text = PARTIAL
    for old, new in changes:
        text = text.replace(old, new)
    assert reasons(unchanged(PASS, text), "partial-rope") == [reason]


def test_partial_rope_needs_parts_of_one_head() -> None:
    """Both slices fit a head by their numbers, but one cuts heads."""
    text = """
        inputs %x: f32[T, 8, 8], %c: f32[T, 2], %s: f32[T, 2]
        %t = slice{axis=2, start=0, stop=4}(%x) : f32[T, 8, 4]
        %p = slice{axis=1, start=4, stop=8}(%x) : f32[T, 4, 8]
        %v = view{shape=[T, 8, 4]}(%p) : f32[T, 8, 4]
        %r = rope{style=half}(%t, %c, %s) : f32[T, 8, 4]
        %y = concat{axis=2}(%r, %v) : f32[T, 8, 8]
        outputs %y
    """
    unchanged(PASS, text)
    direct = """
        inputs %x: f32[T, 8, 8], %c: f32[T, 2], %s: f32[T, 2]
        %t = slice{axis=2, start=0, stop=4}(%x) : f32[T, 8, 4]
        %p = slice{axis=2, start=4, stop=8}(%x) : f32[T, 8, 4]
        %r = rope{style=half}(%t, %c, %s) : f32[T, 8, 4]
        %y = concat{axis=1}(%r, %p) : f32[T, 16, 4]
        outputs %y
    """
    assert reasons(unchanged(PASS, direct), "partial-rope") == ["the parts do not make a whole head"]
