"""Text form: print -> parse -> print is the identity, and errors name line and column."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from llmc.ir.parser import ParseError, parse
from llmc.ir.printer import print_graph
from llmc.ir.verify import verify

ROUND_TRIP = """\
graph main {
  dims R in [0, 16], T in [1, 512]
  inputs %ids: i32[T], %positions: i32[T], %seqs: i32[T], %rows: i32[R], %kv: kv
  %table = weight{expr=Apply{op=pack{scheme=bf16, order=panels}, args=[Apply{op=cast{dtype=bf16}, \
args=[Source{name="embed \\"q\\".weight", dtype=bf16, shape=[96, 64]}]}]}}() : bf16[96, 64]{bf16 in panels}
  %v0 = embedding(%table, %ids) : f32[T, 64] @ "model.embed"
  %v1 = rows{body=graph body {
    inputs %x: f32[T, 64]
    %eps = scalar{value=-1e-05}() : f32[]
    %y = binary{fn=mul}(%x, %eps) : f32[T, 64]
    %z = view{shape=[2*T, 32]}(%y) : f32[2*T, 32]
    outputs %y
  }}(%v0) : f32[T, 64] @ "model.norm"
  %k = view{shape=[T, 2, 32]}(%v1) : f32[T, 2, 32]
  %kv1 = kv_write{slot=0, dtype=bf16}(%kv, %k, %k, %positions, %seqs) : kv
  %o = paged_attention{slot=0, scale=0.125, num_kv_heads=2, value_dim=32, mask=Mask{window=8}}\
(%kv1, %k, %positions, %seqs) : f32[T, 2, 32]
  %last = gather_rows(%o, %rows) : f32[R, 2, 32]
  outputs %last, %kv1
}
"""


def test_round_trip() -> None:
    graph = parse(ROUND_TRIP)
    verify(graph)
    assert print_graph(graph) == ROUND_TRIP


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph a {\n  outputs %x\n}", "line 2, column 11: expected a value defined before, got '%x'"),
        ("graph a {\n  %x = nonsense() : f32[]\n}", "line 2, column 8: expected an op, got 'nonsense'"),
        ("graph a {\n  inputs %x: f33[]\n}", "line 2, column 14: expected one of f32"),
        ("graph a {\n  inputs %x: f32[Q]\n}", "line 2, column 18: expected a dim declared in `dims`, got 'Q'"),
        (
            "graph a {\n  inputs %x: f32[1]\n  %y = unary{fn=neg, z=1}(%x) : f32[1]\n}",
            "line 3, column 22: expected an attribute of Unary",
        ),
        ("graph a {", "line 1, column 10: expected '}', got 'end of text'"),
    ],
)
def test_errors_name_the_place(text: str, message: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(text)
    assert message in str(error.value)


def test_the_document_s_example_is_a_graph_that_any_program_can_parse() -> None:
    """In a process that imports nothing else of llmc: the parser itself knows the ops."""
    document = (Path(__file__).resolve().parents[2] / "docs" / "ir.md").read_text()
    text = textwrap.dedent(document[document.index("    graph decode {") : document.index("\n    }\n")] + "\n    }\n")
    alone = "import sys; from llmc.ir.parser import parse; parse(sys.stdin.read())"
    done = subprocess.run([sys.executable, "-c", alone], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    graph = parse(text)
    verify(graph)
    assert print_graph(graph) == text
