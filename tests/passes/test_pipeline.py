"""Options of passes as text, and what is said when a pass fails."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from llmc.ir.formats import Scheme, WeightLayout
from llmc.ir.graph import Graph, IRError, Node, Op
from llmc.ir.ops.constant import Dequantize, Interleave, Pack, PackScales, Quantize
from llmc.ir.types import DType
from llmc.ir.verify import verify
from llmc.passes.canonicalise import Canonicalise
from llmc.passes.choose_formats import ChooseFormats
from llmc.passes.gates import FuseGates
from llmc.passes.linears import RaiseLinears
from llmc.passes.lower import LowerLinears
from llmc.passes.pipeline import PASSES, Phase, Pipeline, default_pipeline, pass_name, run_pipeline, with_options
from llmc.passes.raise_norms import RaiseNorms
from llmc.passes.rewrite import RuleLog
from llmc.passes.stages import CAPTURED, KERNELS, RAISED, STAGES, TOKENS
from tests.passes.golden import graph

DEFAULT = default_pipeline(Scheme.BF16, 100)


def test_no_options_change_nothing() -> None:
    assert with_options(DEFAULT, "") == with_options(DEFAULT, " , ") == DEFAULT


def test_a_pass_is_left_out_and_another_replaced() -> None:
    changed = with_options(DEFAULT, "choose-formats{scheme=int8_int8g128}, -fuse-gates")
    assert ChooseFormats(Scheme.named("int8_int8g128")) in changed.passes and FuseGates() not in changed.passes
    assert len(changed.passes) == len(DEFAULT.passes) - 1


def test_options_that_are_not_given_stay() -> None:
    cuda = with_options(default_pipeline(Scheme.BF16, 90, WeightLayout.ROWS), "lower-linears{stored=f16}")
    assert LowerLinears(DType.F16, WeightLayout.ROWS) in cuda.passes


def test_every_pass_of_the_pipeline_has_a_name() -> None:
    cuda = default_pipeline(Scheme.BF16, 90, WeightLayout.ROWS)
    assert {type(p) for whole in (DEFAULT, cuda) for p in whole.passes} == set(PASSES)
    assert pass_name(FuseGates) == "fuse-gates"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fuse-gate", "--passes: unknown pass 'fuse-gate', there are canonicalise, flatten"),
        ("-nonsense", "--passes: unknown pass 'nonsense'"),
        (
            "choose-formats{shceme=int8}",
            "an attribute of ChooseFormats .scheme, others, as_stored, head., got 'shceme'",
        ),
        ("choose-formats{scheme=int5}", "column 23: expected one of f32, bf16, .*, got 'int5'"),
        (
            "choose-formats{scheme=int8_int8g48}",
            "column 23: activation group 48: expected .* or a multiple of 64",
        ),
        ("choose-formats{scheme=bf16g64}", "expected one of f32, bf16, .*, got 'bf16g64'"),
        ('choose-formats{others=[At{module="x"}]}', "expected scheme of At, got '{module=\"x\"}'"),
        ("choose-formats{others=[lm_head]}", "column 24: expected At{...}, got 'lm_head'"),
        ("choose-formats{scheme=int8", "--passes: '{' without '}' in 'choose-formats{scheme=int8'"),
        ("-fuse-gates{x=1}", "--passes: '-fuse-gates{x=1}' leaves a pass out and gives it options"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_options(DEFAULT, text)


@dataclass(frozen=True)
class Broken:
    """A pass that gives an invalid graph."""

    def run(self, graph: Graph, log: RuleLog) -> Graph:
        node = graph.nodes[0]
        return Graph(graph.name, graph.inputs, graph.outputs, (Node(node.op, node.outputs, node.outputs, "m"),))


def test_a_failing_pass_reports_itself_and_those_before() -> None:
    seen: list[str] = []
    text = "inputs %x: f32[T]\n%y = unary{fn=exp}(%x) : f32[T]\noutputs %y"
    pipeline = Pipeline((Phase(CAPTURED, (Canonicalise(), Broken())),), ())
    with pytest.raises(IRError, match=r"pass main.broken \(after main.canonicalise\): graph main: unary at m: uses %"):
        run_pipeline(graph(text), pipeline, RuleLog(), lambda name, _: seen.append(name))
    assert seen == ["main.canonicalise"]


def test_an_invalid_graph_is_found_before_the_first_pass() -> None:
    text = "inputs %x: f32[T]\n%y = unary{fn=exp}(%x) : f32[T]\noutputs %y"
    bad = Broken().run(graph(text), RuleLog())
    with pytest.raises(IRError, match="graph main: unary at m: uses"):
        run_pipeline(bad, Pipeline((Phase(CAPTURED, (Canonicalise(),)),), ()), RuleLog(), lambda *_: None)


MATMUL = """inputs %x: f32[T, 4]
%y = permute{perm=[1, 0]}(%x) : f32[4, T]
%z = mat_mul(%x, %y) : f32[T, T] @ "model.scores"
outputs %z"""


def test_a_leftover_is_named_by_the_pass_that_left_it() -> None:
    pipeline = Pipeline((Phase(TOKENS, (Canonicalise(),)), Phase(RAISED, (RaiseLinears(), RaiseNorms()))), ())
    message = (
        r"pass main.raise-linears \(after main.canonicalise\): .* mat_mul at model.scores: not an op of .* 'raised'"
    )
    with pytest.raises(IRError, match=message):
        run_pipeline(graph(MATMUL), pipeline, RuleLog(), lambda *_: None)


def test_a_pass_that_others_need_cannot_be_left_out() -> None:
    text = "inputs %x: f32[T, 4], %w: f32[3, 4]\n%y = linear(%x, %w) : f32[T, 3]\noutputs %y"
    with pytest.raises(IRError, match="linear at no module: not an op of the stage 'kernels'"):
        verify(graph(text), KERNELS)


def test_what_stands_in_a_kernel_is_checked_too() -> None:
    body = "graph r {\n inputs %a: f32[T, 4], %b: f32[3, 4]\n %c = linear(%a, %b) : f32[T, 3]\n outputs %c\n}"
    text = f"inputs %x: f32[T, 4], %w: f32[3, 4]\n%y = rows{{body={body}}}(%x, %w) : f32[T, 3]\noutputs %y"
    with pytest.raises(IRError, match="graph r: linear at no module: not an op of the stage 'kernels'"):
        verify(graph(text), KERNELS)


def test_every_op_stands_in_some_stage() -> None:
    """All but those of weight expressions, which no graph holds."""
    ops = {op for stage in STAGES for op in stage.ops.union(*stage.bodies.values())}
    assert set(Op.mnemonics.values()) - ops == {Pack, PackScales, Interleave, Quantize, Dequantize}
