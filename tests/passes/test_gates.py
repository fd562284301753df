"""Gated MLPs, however the two results meet; and pairs of linears that are none."""

from __future__ import annotations

import pytest

from llmc.passes.gates import FuseGates
from tests.passes.golden import applied, golden, unchanged

PASS = FuseGates()

GATED = """
    inputs %x: f32[T, 4], %z: f32[T, 4], %a: f32[6, 4], %b: f32[6, 4], %c: f32[5, 4], %ba: f32[6], %r: f32[T, 6]
    %g = linear(%x, %a) : f32[T, 6] @ "gate"
    %u = linear(%x, %b) : f32[T, 6] @ "up"
    %s = unary{fn=silu}(%g) : f32[T, 6] @ "act"
    %m = binary{fn=mul}(%s, %u) : f32[T, 6] @ "mlp"
    outputs %m
"""
HEAD = GATED.strip().split("\n")[0]


def test_silu_gate() -> None:
    after = f"""
        {HEAD}
        %m = gated_linear{{body=graph gate {{
          inputs %p: f32[T, 6], %q: f32[T, 6]
          %s = unary{{fn=silu}}(%p) : f32[T, 6] @ "act"
          %m = binary{{fn=mul}}(%s, %q) : f32[T, 6] @ "mlp"
          outputs %m
        }}}}(%x, %a, %b) : f32[T, 6] @ "mlp"
        outputs %m
    """
    assert golden(PASS, GATED, after).applied == {"fuse-gates": 1}


def test_bias_scalars_and_other_values_go_inside() -> None:
    before = GATED.replace("linear(%x, %a)", "linear(%x, %a, %ba)").replace(
        '    %m = binary{fn=mul}(%s, %u) : f32[T, 6] @ "mlp"',
        """    %n = scalar{value=7.0}() : f32[]
    %l = binary{fn=minimum}(%u, %n) : f32[T, 6]
    %t = binary{fn=mul}(%s, %l) : f32[T, 6]
    %m = binary{fn=add}(%t, %r) : f32[T, 6] @ "mlp\"""",
    )
    after = f"""
        {HEAD}
        %t = gated_linear{{body=graph gate {{
          inputs %p: f32[T, 6], %q: f32[T, 6], %d: f32[6]
          %e = binary{{fn=add}}(%p, %d) : f32[T, 6] @ "gate"
          %s = unary{{fn=silu}}(%e) : f32[T, 6] @ "act"
          %n = scalar{{value=7.0}}() : f32[]
          %l = binary{{fn=minimum}}(%q, %n) : f32[T, 6]
          %t = binary{{fn=mul}}(%s, %l) : f32[T, 6]
          outputs %t
        }}}}(%x, %a, %b, %ba) : f32[T, 6]
        %m = binary{{fn=add}}(%t, %r) : f32[T, 6] @ "mlp"
        outputs %m
    """
    assert golden(PASS, before, after).applied == {"fuse-gates": 1}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("linear(%x, %b)", "linear(%z, %b)"),  # another input
        ("outputs %m", "outputs %m, %u"),  # one result is needed as it is
        ("outputs %m", "outputs %m, %s"),
        ("mul}(%s, %u)", "mul}(%s, %s)"),  # they do not meet
    ],
)
def test_no_gate(old: str, new: str) -> None:
    assert not applied(PASS, GATED.replace(old, new)).applied


def test_results_that_meet_in_a_reduction_are_no_gate() -> None:
    unchanged(
        PASS,
        GATED.replace("unary{fn=silu}(%g) : f32[T, 6]", "softmax(%g) : f32[T, 6]"),
    )


def test_results_that_broadcast_are_no_gate() -> None:
    text = GATED.replace("outputs %m", "").replace(
        '%m = binary{fn=mul}(%s, %u) : f32[T, 6] @ "mlp"',
        """
    %sv = view{shape=[T, 6, 1]}(%s) : f32[T, 6, 1]
    %uv = view{shape=[T, 1, 6]}(%u) : f32[T, 1, 6]
    %m = binary{fn=mul}(%sv, %uv) : f32[T, 6, 6]
    outputs %m
    """,
    )
    unchanged(PASS, text)


def test_weights_of_other_widths_are_no_gate() -> None:
    unchanged(
        PASS,
        """
        inputs %x: f32[T, 4], %a: f32[6, 4], %c: f32[1, 4]
        %g = linear(%x, %a) : f32[T, 6]
        %u = linear(%x, %c) : f32[T, 1]
        %m = binary{fn=mul}(%g, %u) : f32[T, 6]
        outputs %m
        """,
    )


def test_of_three_siblings_two_are_joined_and_the_third_is_an_operand() -> None:
    text = GATED.replace(
        "outputs %m",
        """%v = linear(%x, %w3) : f32[T, 6]
    %o = binary{fn=mul}(%m, %v) : f32[T, 6]
    outputs %o""",
    ).replace("%ba: f32[6]", "%ba: f32[6], %w3: f32[6, 4]")
    log = applied(PASS, text)
    assert log.applied["fuse-gates"] >= 1
