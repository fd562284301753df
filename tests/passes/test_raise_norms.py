"""Norms out of their arithmetic, and arithmetic that is no norm."""

from __future__ import annotations

import pytest

from llmc.passes.raise_norms import RaiseNorms
from tests.passes.golden import applied, golden, reasons, unchanged

PASS = RaiseNorms()

RMS = """
    inputs %x: f32[T, 3, 8]
    %eps = scalar{value=1e-06}() : f32[]
    %q = binary{fn=mul}(%x, %x) : f32[T, 3, 8]
    %m = reduce{fn=mean, axis=2}(%q) : f32[T, 3, 1]
    %a = binary{fn=add}(%m, %eps) : f32[T, 3, 1]
    %r = unary{fn=rsqrt}(%a) : f32[T, 3, 1]
    %y = binary{fn=mul}(%x, %r) : f32[T, 3, 8]
    outputs %y
"""
RMS_RAISED = "inputs %x: f32[T, 3, 8]\n%y = rms_norm{eps=1e-06}(%x) : f32[T, 3, 8]\noutputs %y"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("add}(%m, %eps)", "add}(%eps, %m)"),
        ("mul}(%x, %r)", "mul}(%r, %x)"),
        (
            "fn=rsqrt}(%a) : f32[T, 3, 1]\n    %y = binary{fn=mul}",
            "fn=sqrt}(%a) : f32[T, 3, 1]\n    %y = binary{fn=div}",
        ),
    ],
)
def test_rms_norm(old: str, new: str) -> None:
    assert golden(PASS, RMS.replace(old, new), RMS_RAISED).applied == {"rms-norm": 1}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fn=mean", "fn=sum"),  # of squares, not their mean
        ("fn=rsqrt", "fn=sqrt"),
        ("add}(%m, %eps)", "sub}(%m, %eps)"),
        ("mul}(%x, %x)", "mul}(%x, %eps)"),  # no square
        ("%eps = scalar{value=1e-06}() : f32[]", '%eps = weight{expr=Source{name="e", dtype=f32, shape=[]}}() : f32[]'),
    ],
)
def test_arithmetic_that_is_no_rms_norm(old: str, new: str) -> None:
    unchanged(PASS, RMS.replace(old, new))


def test_square_of_another_value_is_no_rms_norm() -> None:
    text = RMS.replace("inputs %x: f32[T, 3, 8]", "inputs %x: f32[T, 3, 8], %z: f32[T, 3, 8]")
    unchanged(PASS, text.replace("mul}(%x, %x)", "mul}(%x, %z)"))


def test_rms_over_another_axis_is_refused() -> None:
    text = RMS.replace("axis=2", "axis=1").replace("f32[T, 3, 1]", "f32[T, 1, 8]")
    assert reasons(unchanged(PASS, text), "rms-norm") == ["the mean is over axes [1], not the last"]


SCALED = """
    inputs %x: f32[T, 3, 8], %w: f32[{w}]
    %n = rms_norm{eps=1e-06}(%x) : f32[T, 3, 8]
    %y = binary{fn=mul}({order}) : f32[T, 3, 8]
    outputs %y
"""


@pytest.mark.parametrize("order", ["%n, %w", "%w, %n"])
def test_scaled_rms_norm(order: str) -> None:
    after = "inputs %x: f32[T, 3, 8], %w: f32[8]\n%y = rms_norm{eps=1e-06}(%x, %w) : f32[T, 3, 8]\noutputs %y"
    log = golden(PASS, SCALED.replace("{w}", "8").replace("{order}", order), after)
    assert log.applied == {"scaled-rms-norm": 1}


@pytest.mark.parametrize("shape", ["T, 3, 8", "3, 8", "1", "3, 1"])
def test_a_factor_that_is_no_row_is_refused(shape: str) -> None:
    log = unchanged(PASS, SCALED.replace("{w}", shape).replace("{order}", "%n, %w"))
    assert reasons(log, "scaled-rms-norm") == [f"the factor is f32[{shape}], a norm's weight would be [8]"]


def test_a_norm_takes_one_weight() -> None:
    text = SCALED.replace("{w}", "8").replace("{order}", "%n, %w")
    unchanged(PASS, text.replace("rms_norm{eps=1e-06}(%x)", "rms_norm{eps=1e-06}(%x, %w)"))


LAYER = """
    inputs %x: f32[T, 8], %w: f32[8], %b: f32[8]
    %eps = scalar{value=1e-05}() : f32[]
    %m = reduce{fn=mean, axis=1}(%x) : f32[T, 1]
    %c = binary{fn=sub}(%x, %m) : f32[T, 8]
    %q = binary{fn=mul}(%c, %c) : f32[T, 8]
    %v = reduce{fn=mean, axis=1}(%q) : f32[T, 1]
    %a = binary{fn=add}(%v, %eps) : f32[T, 1]
    %r = unary{fn=rsqrt}(%a) : f32[T, 1]
    %n = binary{fn=mul}(%c, %r) : f32[T, 8]
    %s = binary{fn=mul}(%n, %w) : f32[T, 8]
    %y = binary{fn=add}(%s, %b) : f32[T, 8]
    outputs %y
"""


def test_layer_norm_with_weight_and_bias() -> None:
    after = """
        inputs %x: f32[T, 8], %w: f32[8], %b: f32[8]
        %y = layer_norm{eps=1e-05}(%x, %w, %b) : f32[T, 8]
        outputs %y
    """
    log = golden(PASS, LAYER, after)
    assert log.applied == {"layer-norm": 1, "scaled-layer-norm": 1, "shifted-layer-norm": 1}


def test_layer_norm_alone() -> None:
    after = """
        inputs %x: f32[T, 8], %w: f32[8], %b: f32[8]
        %y = layer_norm{eps=1e-05, has_weight=false, has_bias=false}(%x) : f32[T, 8]
        outputs %y
    """
    golden(PASS, LAYER.replace("outputs %y", "outputs %n"), after)


def test_a_bias_without_weight_stays_an_addition() -> None:
    """LayerNorm's second input would be read as its weight."""
    text = """
        inputs %x: f32[T, 8], %b: f32[8]
        %n = layer_norm{eps=1e-05, has_weight=false, has_bias=false}(%x) : f32[T, 8]
        %y = binary{fn=add}(%n, %b) : f32[T, 8]
        outputs %y
    """
    unchanged(PASS, text)
    only_bias = text.replace("has_weight=false, has_bias=false}(%x)", "has_weight=false}(%x, %b)")
    unchanged(PASS, only_bias)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mul}(%c, %r)", "mul}(%x, %r)"),  # not centred
        ("mul}(%c, %c)", "mul}(%c, %x)"),
        ("sub}(%x, %m)", "sub}(%m, %x)"),
        ("reduce{fn=mean, axis=1}(%x)", "reduce{fn=max, axis=1}(%x)"),
        ("reduce{fn=mean, axis=1}(%q)", "reduce{fn=sum, axis=1}(%q)"),
    ],
)
def test_arithmetic_that_is_no_layer_norm(old: str, new: str) -> None:
    """At most an rms_norm of something, which is what it then is."""
    assert not {"layer-norm", "scaled-layer-norm"} & set(applied(PASS, LAYER.replace(old, new)).applied)


def test_layer_norm_over_another_axis_is_refused() -> None:
    text = LAYER.replace("f32[T, 8]", "f32[T, 3, 8]").replace("f32[T, 1]", "f32[T, 1, 8]")
    log = applied(PASS, text)
    assert reasons(log, "layer-norm") == ["the mean is over axes [1], not the last"]


@pytest.mark.parametrize(
    ("line", "rule"), [("mul}(%n, %w)", "scaled-layer-norm"), ("add}(%s, %b)", "shifted-layer-norm")]
)
def test_layer_norm_refuses_operands_that_are_no_row(line: str, rule: str) -> None:
    whole = line.replace("%w", "%x").replace("%b", "%x")
    log = applied(PASS, LAYER.replace(line, whole))
    assert reasons(log, rule) == ["the factor is f32[T, 8], a norm's weight would be [8]"]
