"""Linears and embeddings on packed weights, with what follows in the epilogue; and what must stay outside of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from llmc.ir.formats import Scheme
from llmc.ir.graph import Graph, IRError
from llmc.ir.ops.kernel import PackedLinear
from llmc.passes.choose_formats import ChooseFormats
from llmc.passes.linears import FuseLinears
from llmc.passes.lower import LowerLinears
from llmc.passes.rewrite import RuleLog
from tests.passes.golden import applied, golden, graph


def weight(name: str, *shape: int) -> str:
    dims = ", ".join(map(str, shape))
    return f'%{name} = weight{{expr=Source{{name="{name}", dtype=f32, shape=[{dims}]}}}}() : f32[{dims}]'


NUMBERS = "Numbers{element=i8, group=0}"  # of int8


@dataclass(frozen=True)
class Lower:
    """Linears of one scheme, chosen and lowered."""

    scheme: Scheme

    def run(self, graph: Graph, log: RuleLog) -> Graph:
        return LowerLinears(self.scheme.stored).run(ChooseFormats(self.scheme).run(graph, log), log)


F32, BF16, INT8 = Lower(Scheme.F32), Lower(Scheme.BF16), Lower(Scheme.INT8)
BIASED = f"""
    inputs %x: f32[T, 64], %r: f32[T, 96]
    {weight("w", 96, 64)}
    {weight("b", 96)}
    %y = linear(%x, %w, %b) : f32[T, 96] @ "fc"
    %g = unary{{fn=gelu}}(%y) : f32[T, 96] @ "act"
    %s = binary{{fn=add}}(%g, %r) : f32[T, 96]
    outputs %s
"""
EPILOGUE = """epilogue=graph epilogue {
          inputs %p: f32[T, 96], %d: f32[96], %q: f32[T, 96]
          %e = binary{fn=add}(%p, %d) : f32[T, 96] @ "fc"
          %g = unary{fn=gelu}(%e) : f32[T, 96] @ "act"
          %s = binary{fn=add}(%g, %q) : f32[T, 96]
          outputs %s
        }"""
SOURCE = 'Source{name="w", dtype=f32, shape=[96, 64]}'


def weight_lines(dtype: str, scheme: str, how: str) -> str:
    """The packed weight of `BIASED`, made by one op of its source."""
    expr = f"Apply{{op=pack{{scheme={scheme}, order=panels}}, args=[Apply{{op={how}, args=[{SOURCE}]}}]}}"
    return f'%w = weight{{expr={expr}}}() : {dtype}[96, 64]{{{scheme} in panels}} @ "fc"'


@pytest.mark.parametrize(
    ("step", "operand", "weights", "arguments"),
    [
        (
            F32,
            "",
            weight_lines("f32", "f32", "cast{dtype=f32}"),
            "scheme=f32 %x, %w",
        ),
        (
            BF16,
            '%c = cast{dtype=bf16}(%x) : bf16[T, 64] @ "fc"',
            weight_lines("bf16", "bf16", "cast{dtype=bf16}"),
            "scheme=bf16 %c, %w",
        ),
        (
            INT8,
            '%c = quantize_rows{group=64}(%x) : i8[T, 64]{groups64} @ "fc"',
            weight_lines("i8", "int8", f"quantize{{numbers={NUMBERS}, part=data}}")
            + f"\n%ws = weight{{expr=Apply{{op=quantize{{numbers={NUMBERS}, part=scale}}, args=[{SOURCE}]}}}}()"
            + ' : f32[96] @ "fc"',
            "scheme=int8 %c, %w, %ws",
        ),
    ],
    ids=["f32", "bf16", "int8"],
)
def test_linear(step: Lower, operand: str, weights: str, arguments: str) -> None:
    scheme, inputs = arguments.split(" ", 1)
    after = f"""
        inputs %x: f32[T, 64], %r: f32[T, 96]
        {weight("b", 96)}
        {operand}
        {weights}
        %s = packed_linear{{{scheme}, {EPILOGUE}}}({inputs}, %b, %r) : f32[T, 96] @ "fc"
        outputs %s
    """
    log = golden(step, BIASED, after)
    assert log.applied == {"fuse-epilogue-binary": 2, "fuse-epilogue-unary": 1}


def packed(step: Lower, text: str) -> list[PackedLinear]:
    """The packed linears a graph is lowered to."""
    lowered = step.run(graph(text), RuleLog())
    return [n.op for n in lowered.nodes if isinstance(n.op, PackedLinear)]


def absorbed(step: Lower, follow: str, output: str, inputs: str = "") -> list[str]:
    """Ops in the epilogue of a linear f32[T, 64] -> %y f32[T, 96] that `follow` comes after."""
    head = f"inputs %x: f32[T, 64]{inputs}\n{weight('w', 96, 64)}\n%y = linear(%x, %w) : f32[T, 96]"
    text = f"{head}\n{follow}\noutputs {output}"
    (op,) = packed(step, text)
    return [n.op.mnemonic() for n in op.epilogue.nodes]


def test_an_epilogue_takes_scalars_rows_and_residuals() -> None:
    follow = """
        %n = scalar{value=2.0}() : f32[]
        %a = binary{fn=mul}(%y, %n) : f32[T, 96]
        %b = binary{fn=add}(%a, %row) : f32[T, 96]
        %c = binary{fn=add}(%b, %res) : f32[T, 96]
        %d = binary{fn=mul}(%c, %one) : f32[T, 96]
    """
    inputs = ", %row: f32[96], %res: f32[T, 96], %one: f32[]"
    assert absorbed(F32, follow, "%d", inputs) == ["scalar", "binary", "binary", "binary", "binary"]


@pytest.mark.parametrize(
    ("follow", "inputs"),
    [
        ("%a = binary{fn=mul}(%y, %f) : f32[T, 96]", ", %f: f32[T, 1]"),  # a factor per row
        ("%a = binary{fn=mul}(%y, %f) : f32[T, 96]", ", %f: f32[1, 96]"),
        ("%a = softmax(%y) : f32[T, 96]", ""),
        ("%a = view{shape=[T, 2, 48]}(%y) : f32[T, 2, 48]", ""),
        (
            "%z = unary{fn=exp}(%y) : f32[T, 96]\n%m = reduce{fn=max, axis=1}(%y) : f32[T, 1]\n"
            "%a = binary{fn=sub}(%z, %m) : f32[T, 96]",
            "",
        ),  # %y itself is needed
        ("%a = binary{fn=gt}(%y, %f) : bool[T, 96]", ", %f: f32[96]"),  # no kernel stores booleans
        ("%a = cast{dtype=i32}(%y) : i32[T, 96]", ""),
        ("%a = where(%f, %y, %y) : f32[T, 96]", ", %f: bool[T, 96]"),  # no kernel loads them
    ],
)
def test_what_an_epilogue_does_not_take(follow: str, inputs: str) -> None:
    assert absorbed(F32, follow, "%a", inputs) == []


def test_an_operand_is_the_last_thing_an_epilogue_makes() -> None:
    """Registers hold float32: what comes after rounding to bf16 must read the rounded values."""
    follow = "%a = cast{dtype=bf16}(%y) : bf16[T, 96]\n%b = cast{dtype=f32}(%a) : f32[T, 96]"
    assert absorbed(F32, follow, "%b") == ["cast"]


def test_a_bool_inside_an_epilogue_is_taken() -> None:
    follow = "%m = binary{fn=gt}(%y, %f) : bool[T, 96]\n%a = where(%m, %y, %f) : f32[T, 96]"
    assert absorbed(F32, follow, "%a", ", %f: f32[96]") == ["binary", "where"]


@pytest.mark.parametrize(("width", "taken"), [(96, ["cast"]), (80, [])])
def test_the_next_operand_is_written_where_its_rows_need_no_padding(width: int, taken: list[str]) -> None:
    text = f"""
        inputs %x: f32[T, 64]
        {weight("w", width, 64)}
        {weight("v", 32, width)}
        %y = linear(%x, %w) : f32[T, {width}]
        %z = linear(%y, %v) : f32[T, 32]
        outputs %z
    """
    first, second = packed(BF16, text)
    assert [n.op.mnemonic() for n in first.epilogue.nodes] == taken and not second.epilogue.nodes


def test_two_linears_that_meet_share_the_sum_out_once() -> None:
    text = f"""
        inputs %x: f32[T, 64], %z: f32[T, 64]
        {weight("w", 96, 64)}
        {weight("v", 96, 64)}
        %a = linear(%x, %w) : f32[T, 96]
        %b = linear(%z, %v) : f32[T, 96]
        %c = binary{{fn=add}}(%a, %b) : f32[T, 96]
        outputs %c
    """
    first, second = packed(F32, text)
    assert len(first.epilogue.nodes) + len(second.epilogue.nodes) == 1


GATE = f"""
    inputs %x: f32[T, 64], %r: f32[T, 40]
    {weight("a", 40, 64)}
    {weight("b", 40, 64)}
    %m = gated_linear{{scheme=f32, body=graph gate {{
      inputs %g: f32[T, 40], %u: f32[T, 40]
      %m = binary{{fn=mul}}(%g, %u) : f32[T, 40]
      outputs %m
    }}}}(%x, %a, %b) : f32[T, 40]
    %s = binary{{fn=add}}(%m, %r) : f32[T, 40]
    outputs %s
"""


def test_gated_linear() -> None:
    lowered = F32.run(graph(GATE), RuleLog())
    (op,) = (n for n in lowered.nodes if isinstance(n.op, PackedLinear))
    assert isinstance(op.op, PackedLinear) and op.op.gated
    assert [n.op.mnemonic() for n in op.op.epilogue.nodes] == ["binary", "binary"]
    assert str(op.inputs[1].type) == "f32[96, 64]{f32 in panels}"  # both parts padded to 48 rows
    assert op.inputs[2].name == "r"


TIED = f"""
    inputs %ids: i32[T]
    {weight("t", 100, 64)}
    {weight("u", 100, 64)}
    %x = embedding(%t, %ids) : f32[T, 64]
    %y = linear(%x, %HEAD) : f32[T, 100]
    outputs %y
"""


@pytest.mark.parametrize(
    ("step", "shared", "apart"),
    [
        (F32, "f32[100, 64]{f32 in panels}", "f32[100, 64]"),
        (BF16, "bf16[100, 64]{bf16 in panels}", "bf16[100, 64]"),
        (INT8, "i8[100, 64]{int8 in panels}", "bf16[100, 64]"),
    ],
)
def test_a_tied_head_is_packed_once(step: Lower, shared: str, apart: str) -> None:
    for head, table in (("%t", shared), ("%u", apart)):
        log = RuleLog()
        lowered = step.run(graph(TIED.replace("%HEAD", head)), log)
        (node,) = (n for n in lowered.nodes if n.op.mnemonic() == "embedding")
        assert str(node.inputs[0].type) == table and len(node.inputs) == (3 if "i8" in table else 2)
        assert log.applied["share-tied-head"] == (head == "%t")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "inputs %x: f32[T, 3, 64]\n" + weight("w", 96, 64) + "\n%y = linear(%x, %w) : f32[T, 3, 96]\noutputs %y",
            r"linear at no module: input f32\[T, 3, 64\], expected \[T, K\]",
        ),
        (
            'inputs %x: f32[T, 64], %w: f32[96, 64]\n%y = linear(%x, %w) : f32[T, 96] @ "fc"\noutputs %y',
            r"linear at fc: its weight f32\[96, 64\] is not a constant",
        ),
        (
            'inputs %i: i32[T], %w: f32[96, 64]\n%y = embedding(%w, %i) : f32[T, 64] @ "emb"\noutputs %y',
            r"embedding at emb: its table f32\[96, 64\] is not a constant",
        ),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        applied(F32, text)


@pytest.mark.parametrize("group", [16, 33, 96])
def test_groups_that_no_kernel_has_are_refused(group: int) -> None:
    with pytest.raises(ValueError, match=f"activation group {group}: expected 0 .whole rows., 32, or a multiple of 64"):
        Scheme.named(f"int8_int8g{group}")


def test_low_rank_terms_of_a_linear_are_linears() -> None:
    """An adapter, as two more matrices: what reads the input is stacked on its weight, the sum is an epilogue."""
    text = f"""
        inputs %x: f32[T, 64]
        {weight("w", 96, 64)}
        {weight("a", 8, 64)}
        {weight("b", 96, 8)}
        %y = linear(%x, %w) : f32[T, 96]
        %d = linear(%x, %a) : f32[T, 8]
        %u = linear(%d, %b) : f32[T, 96]
        %s = binary{{fn=add}}(%y, %u) : f32[T, 96]
        outputs %s
    """
    lowered = F32.run(FuseLinears().run(graph(text), RuleLog()), RuleLog())
    kernels = [node for node in lowered.nodes if isinstance(node.op, PackedLinear)]
    assert [node.output.tensor.shape[1] for node in kernels] == [96 + 8, 96]
    assert kernels[-1].output in lowered.outputs, "the sum is left outside of the linear"
