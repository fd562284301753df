"""[B, S] to one axis of tokens, and refusals of what mixes positions."""

from __future__ import annotations

import pytest

from llmc.ir.graph import IRError
from llmc.passes.rewrite import RuleLog
from llmc.passes.tokens import Flatten

from .golden import graph, shown

PASS = Flatten()
INPUTS = "inputs %ids: i64[B, S], %positions: i64[B, S]"
EMBED = f"""
    {INPUTS}
    %w = weight{{expr=Source{{name="w", dtype=f32, shape=[10, 8]}}}}() : f32[10, 8]
    %x = embedding(%w, %ids) : f32[B, S, 8]
"""


def flat(lines: str, output: str = "%y") -> list[str]:
    """The node lines that follow the embedding after flattening, without names of results."""
    text = shown(PASS.run(graph(f"{EMBED}\n{lines}\noutputs {output}"), RuleLog()))
    nodes = [line.strip().split(" = ", 1)[1] for line in text.splitlines() if " = " in line]
    start = next(i for i, line in enumerate(nodes) if line.startswith("embedding"))
    return nodes[start + 1 :]


def test_inputs_become_tokens() -> None:
    text = shown(PASS.run(graph(EMBED + "\noutputs %x"), RuleLog())).splitlines()
    assert [line.strip() for line in text[1:-1]] == [
        "inputs %ids: i32[T], %positions: i32[T], %seqs: i32[T]",
        "%v0 = cast{dtype=i64}(%ids) : i64[T]",
        '%v1 = weight{expr=Source{name="w", dtype=f32, shape=[10, 8]}}() : f32[10, 8]',
        "%v2 = embedding(%v1, %v0) : f32[T, 8]",
        "outputs %v2",
    ]


def test_heads_lose_their_permutation() -> None:
    lines = """
        %h = view{shape=[B, S, 2, 4]}(%x) : f32[B, S, 2, 4]
        %p = permute{perm=[0, 2, 1, 3]}(%h) : f32[B, 2, S, 4]
        %r = reduce{fn=max, axis=1}(%p) : f32[B, 1, S, 4]
        %a = attention{scale=0.5}(%p, %p, %p) : f32[B, S, 2, 4]
        %y = view{shape=[B*S, 8]}(%a) : f32[B*S, 8]
    """
    assert flat(lines, "%y, %r") == [
        "view{shape=[T, 2, 4]}(%v2) : f32[T, 2, 4]",
        "reduce{fn=max, axis=1}(%v3) : f32[T, 1, 4]",
        "attention{scale=0.5}(%v3, %v3, %v3, %positions, %seqs) : f32[T, 2, 4]",
        "view{shape=[T, 8]}(%v5) : f32[T, 8]",
    ]


def test_axes_that_are_permuted_among_themselves_stay_so() -> None:
    lines = """
        %h = view{shape=[B, S, 2, 4]}(%x) : f32[B, S, 2, 4]
        %y = permute{perm=[3, 1, 0, 2]}(%h) : f32[4, S, B, 2]
    """
    assert flat(lines)[-1] == "permute{perm=[0, 2, 1]}(%v3) : f32[T, 4, 2]"


def test_operands_align_by_their_captured_axes() -> None:
    """[B, 1, S, 1] against [B, 2, S, 4]: the 1 that stands for heads stays, those of rows go."""
    lines = """
        %h = view{shape=[B, S, 2, 4]}(%x) : f32[B, S, 2, 4]
        %p = permute{perm=[0, 2, 1, 3]}(%h) : f32[B, 2, S, 4]
        %f = cast{dtype=f32}(%positions) : f32[B, S]
        %g = view{shape=[B, 1, S, 1]}(%f) : f32[B, 1, S, 1]
        %b = weight{expr=Source{name="b", dtype=f32, shape=[2, 1, 4]}}() : f32[2, 1, 4]
        %m = binary{fn=mul}(%p, %g) : f32[B, 2, S, 4]
        %y = binary{fn=add}(%m, %b) : f32[B, 2, S, 4]
    """
    assert flat(lines) == [
        "view{shape=[T, 2, 4]}(%v3) : f32[T, 2, 4]",
        "cast{dtype=f32}(%v1) : f32[T]",
        "view{shape=[T, 1, 1]}(%v5) : f32[T, 1, 1]",
        'weight{expr=Source{name="b", dtype=f32, shape=[2, 1, 4]}}() : f32[2, 1, 4]',
        "binary{fn=mul}(%v4, %v6) : f32[T, 2, 4]",
        "view{shape=[2, 4]}(%v7) : f32[2, 4]",
        "binary{fn=add}(%v8, %v9) : f32[T, 2, 4]",
    ]


def test_positions_stand_for_an_arange_of_the_sequence() -> None:
    lines = """
        %n = arange{size=S}() : i64[S]
        %f = cast{dtype=f32}(%n) : f32[S]
        %g = view{shape=[1, S, 1]}(%f) : f32[1, S, 1]
        %y = binary{fn=mul}(%x, %g) : f32[B, S, 8]
    """
    assert flat(lines) == [
        "cast{dtype=i64}(%positions) : i64[T]",
        "cast{dtype=f32}(%v3) : f32[T]",
        "view{shape=[T, 1, 1]}(%v4) : f32[T, 1, 1]",
        "view{shape=[T, 1]}(%v5) : f32[T, 1]",
        "binary{fn=mul}(%v2, %v6) : f32[T, 8]",
    ]


def test_constants_lose_the_axes_that_repeat_them() -> None:
    lines = """
        %b = weight{expr=Source{name="b", dtype=f32, shape=[3]}}() : f32[3]
        %e = expand{shape=[B, S, 3]}(%b) : f32[B, S, 3]
        %y = concat{axis=2}(%x, %e) : f32[B, S, 11]
    """
    assert flat(lines)[1:] == ["expand{shape=[T, 3]}(%v3) : f32[T, 3]", "concat{axis=1}(%v2, %v4) : f32[T, 11]"]


def test_slices_reductions_and_norms_of_features() -> None:
    lines = """
        %s = slice{axis=2, start=2, stop=6}(%x) : f32[B, S, 4]
        %m = reduce{fn=mean, axis=2}(%s) : f32[B, S, 1]
        %n = layer_norm{eps=1e-05, has_weight=false, has_bias=false}(%s) : f32[B, S, 4]
        %y = binary{fn=sub}(%n, %m) : f32[B, S, 4]
    """
    assert flat(lines) == [
        "slice{axis=1, start=2, stop=6}(%v2) : f32[T, 4]",
        "reduce{fn=mean, axis=1}(%v3) : f32[T, 1]",
        "layer_norm{eps=1e-05, has_weight=false, has_bias=false}(%v3) : f32[T, 4]",
        "binary{fn=sub}(%v5, %v4) : f32[T, 4]",
    ]


MASKED = "%k = mask_descriptor{mask=Mask}(%ids) : bool[B, 1, S, S]\n"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("%y = reduce{fn=sum, axis=1}(%x) : f32[B, 1, 8]", "works along axis 1"),
        ("%y = reduce{fn=mean, axis=0}(%x) : f32[1, S, 8]", "works along axis 0"),
        ("%t = permute{perm=[0, 2, 1]}(%x) : f32[B, 8, S]\n%y = softmax(%t) : f32[B, 8, S]", "works along axis 2"),
        (
            "%t = permute{perm=[0, 2, 1]}(%x) : f32[B, 8, S]\n"
            "%y = layer_norm{eps=1e-05, has_weight=false, has_bias=false}(%t) : f32[B, 8, S]",
            "works along axis 2",
        ),
        ("%y = concat{axis=1}(%x, %x) : f32[B, 2*S, 8]", "works along axis 1"),
        ("%y = view{shape=[B, 8*S]}(%x) : f32[B, 8*S]", "regroups rows with other axes as"),
        ("%y = view{shape=[8*B*S]}(%x) : f32[8*B*S]", "regroups rows with other axes as"),
        (
            "%t = permute{perm=[0, 2, 1]}(%x) : f32[B, 8, S]\n%y = mat_mul(%x, %t) : f32[B, S, S]",
            "multiplies by values of the sequence",
        ),
        ("%t = permute{perm=[0, 2, 1]}(%x) : f32[B, 8, S]\n%y = mat_mul(%t, %x) : f32[B, 8, 8]", "works along axis 2"),
        (
            "%p = view{shape=[B, 1, S]}(%positions) : i64[B, 1, S]\n"
            "%q = view{shape=[B, S, 1]}(%positions) : i64[B, S, 1]\n"
            "%y = binary{fn=le}(%p, %q) : bool[B, S, S]",
            "combines ['B', '1', 'S'] with other sequences or positions",
        ),
        (
            "%p = view{shape=[B, 1, S]}(%positions) : i64[B, 1, S]\n"
            "%q = view{shape=[B, S, 1]}(%positions) : i64[B, S, 1]\n"
            "%f = expand{shape=[B, S, S]}(%p) : i64[B, S, S]\n%g = expand{shape=[B, S, S]}(%q) : i64[B, S, S]\n"
            "%y = binary{fn=le}(%f, %g) : bool[B, S, S]",
            "combines ['B', '1', 'S'] with other sequences or positions",
        ),
        (
            "%n = arange{size=S}() : i64[S]\n%q = view{shape=[S, 1]}(%n) : i64[S, 1]\n"
            "%y = binary{fn=le}(%n, %q) : bool[S, S]",
            "combines ['S'] with other sequences or positions",
        ),
        (
            "%n = arange{size=B}() : i64[B]\n%q = view{shape=[B, 1]}(%n) : i64[B, 1]\n"
            "%y = binary{fn=add}(%positions, %q) : i64[B, S]",
            "has no meaning per token",
        ),
        (
            MASKED + "%o = scalar{value=1.0}() : f32[]\n%z = scalar{value=0.0}() : f32[]\n"
            "%y = where(%k, %o, %z) : f32[B, 1, S, S]",
            "reads an attention mask",
        ),
    ],
)
def test_what_mixes_positions_is_refused(lines: str, reason: str) -> None:
    text = graph(f"{EMBED}\n{lines}\noutputs %y")
    with pytest.raises(IRError) as error:
        PASS.run(text, RuleLog())
    assert reason in str(error.value)
    assert "it mixes positions of a sequence, which only attention may; llmc cannot compile this model" in str(
        error.value
    )


def test_batched_products_of_heads_are_refused_by_name() -> None:
    lines = """
        %h = view{shape=[B, S, 2, 4]}(%x) : f32[B, S, 2, 4]
        %p = permute{perm=[0, 2, 1, 3]}(%h) : f32[B, 2, S, 4]
        %w2 = weight{expr=Source{name="w2", dtype=f32, shape=[2, 4, 4]}}() : f32[2, 4, 4]
        %y = mat_mul(%p, %w2) : f32[B, 2, S, 4] @ "heads"
    """
    with pytest.raises(IRError, match=r"mat_mul of .* at heads: products with a stack of matrices"):
        PASS.run(graph(f"{EMBED}\n{lines}\noutputs %y"), RuleLog())


def test_static_ids_are_refused() -> None:
    with pytest.raises(IRError, match=r"ids are i64\[2, 5\], expected symbolic \[B, S\]"):
        PASS.run(graph("inputs %ids: i64[2, 5]\n%y = cast{dtype=f32}(%ids) : f32[2, 5]\noutputs %y"), RuleLog())
