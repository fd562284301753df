"""Linears out of products with constants, and linears of one input joined."""

from __future__ import annotations

import pytest

from llmc.passes.linears import FuseLinears, RaiseLinears
from tests.passes.golden import applied, golden, unchanged

RAISE, FUSE = RaiseLinears(), FuseLinears()


def weight(name: str, *shape: int, dtype: str = "f32") -> str:
    dims = ", ".join(map(str, shape))
    return f'%{name} = weight{{expr=Source{{name="{name}", dtype={dtype}, shape=[{dims}]}}}}() : {dtype}[{dims}]'


def test_constant_matmul() -> None:
    before = f"inputs %x: f32[T, 4]\n{weight('w', 4, 6)}\n%y = mat_mul(%x, %w) : f32[T, 6]\noutputs %y"
    after = """
        inputs %x: f32[T, 4]
        %w = weight{expr=Apply{op=permute{perm=[1, 0]}, args=[Source{name="w", dtype=f32, shape=[4, 6]}]}}() : f32[6, 4]
        %y = linear(%x, %w) : f32[T, 6]
        outputs %y
    """
    assert golden(RAISE, before, after).applied == {"constant-matmul": 1}


@pytest.mark.parametrize(
    "text",
    [
        "inputs %x: f32[T, 4], %w: f32[4, 6]\n%y = mat_mul(%x, %w) : f32[T, 6]\noutputs %y",
        f"inputs %x: f32[T, 4]\n{weight('w', 3, 4, 6)}\n%y = mat_mul(%x, %w) : f32[3, T, 6]\noutputs %y",
        f"inputs %x: f32[6, 4]\n{weight('w', 2, 6)}\n%y = mat_mul(%w, %x) : f32[2, 4]\noutputs %y",
        f"inputs %x: f16[T, 4]\n{weight('w', 4, 6, dtype='f16')}\n%y = mat_mul(%x, %w) : f16[T, 6]\noutputs %y",
    ],
    ids=["not constant", "a stack of matrices", "constant on the left", "not in float32"],
)
def test_other_products_stay(text: str) -> None:
    unchanged(RAISE, text)


BIAS = """
    inputs %x: f32[T, 4]
    {w}
    {b}
    %y = linear(%x, %w) : f32[T, 6]
    %z = binary{{fn={fn}}}({order}) : f32[T, 6]
    outputs %z
"""


@pytest.mark.parametrize("order", ["%y, %b", "%b, %y"])
def test_add_bias(order: str) -> None:
    text = BIAS.format(w=weight("w", 6, 4), b=weight("b", 6), fn="add", order=order)
    after = (
        f"inputs %x: f32[T, 4]\n{weight('w', 6, 4)}\n{weight('b', 6)}\n%y = linear(%x, %w, %b) : f32[T, 6]\noutputs %y"
    )
    assert golden(RAISE, text, after).applied == {"add-bias": 1}


@pytest.mark.parametrize(("fn", "shape"), [("sub", (6,)), ("add", (1, 6)), ("add", (1,))])
def test_no_bias(fn: str, shape: tuple[int, ...]) -> None:
    unchanged(RAISE, BIAS.format(w=weight("w", 6, 4), b=weight("b", *shape), fn=fn, order="%y, %b"))


def test_a_second_bias_stays_an_addition() -> None:
    text = BIAS.format(w=weight("w", 6, 4), b=weight("b", 6), fn="add", order="%y, %b")
    unchanged(RAISE, text.replace("linear(%x, %w)", "linear(%x, %w, %b)"))


def test_slice_of_linear() -> None:
    before = f"""
        inputs %x: f32[T, 4]
        {weight("w", 6, 4)}
        {weight("b", 6)}
        %y = linear(%x, %w, %b) : f32[T, 6]
        %z = slice{{axis=1, start=2, stop=6, step=2}}(%y) : f32[T, 2]
        outputs %z
    """
    cut = 'Apply{op=slice{axis=0, start=2, stop=6, step=2}, args=[Source{name="%s", dtype=f32, shape=[%s]}]}'
    after = f"""
        inputs %x: f32[T, 4]
        %w = weight{{expr={cut % ("w", "6, 4")}}}() : f32[2, 4]
        %b = weight{{expr={cut % ("b", "6")}}}() : f32[2]
        %y = linear(%x, %w, %b) : f32[T, 2]
        outputs %y
    """
    assert golden(RAISE, before, after).applied == {"slice-of-linear": 1}


def test_slices_of_other_axes_stay() -> None:
    unchanged(
        RAISE,
        f"""
        inputs %x: f32[T, 3, 4]
        {weight("w", 6, 4)}
        %y = linear(%x, %w) : f32[T, 3, 6]
        %z = slice{{axis=1, start=0, stop=2}}(%y) : f32[T, 2, 6]
        outputs %z
        """,
    )


QKV = f"""
    inputs %x: f32[T, 4], %z: f32[T, 4]
    {weight("q", 6, 4)}
    {weight("k", 2, 4)}
    {weight("b", 2)}
    %a = linear(%x, %q) : f32[T, 6] @ "q_proj"
    %c = linear(%x, %k, %b) : f32[T, 2] @ "k_proj"
    outputs %a, %c
"""


def test_fuse_linears_and_fill_missing_biases_with_zeros() -> None:
    after = """
        inputs %x: f32[T, 4], %z: f32[T, 4]
        %w = weight{expr=Apply{op=concat{axis=0}, args=[Source{name="q", dtype=f32, shape=[6, 4]}, \
Source{name="k", dtype=f32, shape=[2, 4]}]}}() : f32[8, 4] @ "q_proj + k_proj"
        %b = weight{expr=Apply{op=concat{axis=0}, args=[Apply{op=expand{shape=[6]}, args=[Literal{value=0.0}]}, \
Source{name="b", dtype=f32, shape=[2]}]}}() : f32[8] @ "q_proj + k_proj"
        %y = linear(%x, %w, %b) : f32[T, 8] @ "q_proj + k_proj"
        %a = slice{axis=1, start=0, stop=6}(%y) : f32[T, 6] @ "q_proj"
        %c = slice{axis=1, start=6, stop=8}(%y) : f32[T, 2] @ "k_proj"
        outputs %a, %c
    """
    assert golden(FUSE, QKV, after).applied == {"fuse-linears": 1}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("linear(%x, %k, %b)", "linear(%z, %k, %b)"),  # another input
        (weight("k", 2, 4), "%k = slice{axis=1, start=0, stop=2}(%m) : f32[2, 2]"),  # not constant
        (weight("k", 2, 4), weight("k", 2, 4, dtype="f16")),  # cannot be stacked with the other
    ],
)
def test_linears_that_stay_apart(old: str, new: str) -> None:
    text = QKV.replace(old, new)
    if "%m" in text:
        text = text.replace("%z: f32[T, 4]", "%m: f32[2, 4]").replace(
            "slice{axis=1, start=0, stop=2}(%m) : f32[2, 2]", "unary{fn=neg}(%m) : f32[2, 4]"
        )
    assert not applied(FUSE, text).applied
