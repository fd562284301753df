"""Only sampled rows get logits, and rows are gathered as early as they are independent of each other."""

from __future__ import annotations

from llmc.ir.graph import Graph
from llmc.passes.entries import SampleRows, decode_entry
from llmc.passes.rewrite import RuleLog

from .golden import golden, graph, shown

STEP = SampleRows(90)
HEAD = """
    inputs %ids: i32[T], %positions: i32[T], %seqs: i32[T], %w: f32[100, 8], %g: f32[8]
    %x = embedding(%w, %ids) : f32[T, 8]
    %k = view{shape=[T, 2, 4]}(%x) : f32[T, 2, 4]
    %a = attention{scale=0.5}(%k, %k, %k, %positions, %seqs) : f32[T, 2, 4]
    %o = view{shape=[T, 8]}(%a) : f32[T, 8]
    %r = binary{fn=add}(%x, %o) : f32[T, 8]
    %n = rms_norm{eps=1e-06}(%r, %g) : f32[T, 8]
    %y = linear(%n, %w) : f32[T, 100]
    outputs %y
"""


def test_rows_are_gathered_after_the_last_attention() -> None:
    after = """
        inputs %ids: i32[T], %positions: i32[T], %seqs: i32[T], %w: f32[100, 8], %g: f32[8], %rows: i32[R]
        %x = embedding(%w, %ids) : f32[T, 8]
        %k = view{shape=[T, 2, 4]}(%x) : f32[T, 2, 4]
        %a = attention{scale=0.5}(%k, %k, %k, %positions, %seqs) : f32[T, 2, 4]
        %o = view{shape=[T, 8]}(%a) : f32[T, 8]
        %xr = gather_rows(%x, %rows) : f32[R, 8]
        %or = gather_rows(%o, %rows) : f32[R, 8]
        %r = binary{fn=add}(%xr, %or) : f32[R, 8]
        %n = rms_norm{eps=1e-06}(%r, %g) : f32[R, 8]
        %y = linear(%n, %w) : f32[R, 100]
        %t = sample{num_valid_tokens=90}(%y) : i32[R]
        outputs %y, %t
    """
    log = golden(STEP, HEAD, after)
    assert log.applied == {"gather-before-linear": 1, "gather-before-rms_norm": 1, "gather-before-binary": 1}


def test_what_attention_needs_is_computed_for_all_rows() -> None:
    """The residual feeds the next layer's attention too: it is gathered, not recomputed for the rows."""
    later = HEAD.replace(
        "%n = rms",
        """%k2 = view{shape=[T, 2, 4]}(%r) : f32[T, 2, 4]
    %a2 = attention{scale=0.5}(%k2, %k2, %k2, %positions, %seqs) : f32[T, 2, 4]
    %o2 = view{shape=[T, 8]}(%a2) : f32[T, 8]
    %s = binary{fn=add}(%r, %o2) : f32[T, 8]
    %n = rms""",
    ).replace("(%r, %g)", "(%s, %g)")
    text = shown(STEP.run(graph(later), RuleLog()))
    assert text.count("gather_rows") == 2
    assert "%v4 = binary{fn=add}(%v0, %v3) : f32[T, 8]" in text  # the residual, of all rows
    assert "gather_rows(%v4, %rows)" in text and "gather_rows(%v7, %rows)" in text


def test_logits_that_are_no_row_wise_result_are_gathered_themselves() -> None:
    text = shown(
        STEP.run(
            graph(
                HEAD.replace("%y = linear(%n, %w)", "%l = linear(%n, %w)").replace(
                    "outputs %y", "%y = slice{axis=1, start=0, stop=95}(%l) : f32[T, 95]\n    outputs %y"
                )
            ),
            RuleLog(),
        )
    )
    assert text.count("gather_rows") == 1 and "slice{axis=1, start=0, stop=95}(%v6) : f32[T, 95]" in text


def test_decode_has_no_rows_input_and_no_gathers() -> None:
    sampled = STEP.run(graph(HEAD), RuleLog())
    decode = decode_entry(Graph("prefill", sampled.inputs, sampled.outputs, sampled.nodes))
    after = HEAD.replace("outputs %y", "%t = sample{num_valid_tokens=90}(%y) : i32[T]\n    outputs %y, %t")
    assert shown(decode) == shown(graph(after)) and decode.name == "decode"


def test_decode_keeps_gathers_by_other_indices() -> None:
    text = """
        inputs %ids: i32[T], %pick: i32[T], %rows: i32[R], %x: f32[T, 8]
        %a = gather_rows(%x, %pick) : f32[T, 8]
        %b = gather_rows(%a, %rows) : f32[R, 8]
        %c = unary{fn=exp}(%b) : f32[R, 8]
        outputs %c
    """
    after = """
        inputs %ids: i32[T], %pick: i32[T], %x: f32[T, 8]
        %a = gather_rows(%x, %pick) : f32[T, 8]
        %c = unary{fn=exp}(%a) : f32[T, 8]
        outputs %c
    """
    assert shown(decode_entry(graph(text))) == shown(graph(after))
