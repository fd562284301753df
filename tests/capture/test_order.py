"""The captured graph says nothing of the order in which modeling code ran."""

from llmc.compiler.capture.order import in_order_of_use
from llmc.ir.parser import parse
from llmc.ir.printer import print_graph

ONE = """
graph captured {
  dims B in [1, inf], S in [1, inf]
  inputs %ids: i64[B, S], %positions: i64[B, S]
  %far = weight{expr=Source{name="far", dtype=f32, shape=[4], origin=buffer}}() : f32[4]
  %near = weight{expr=Source{name="near", dtype=f32, shape=[4], origin=buffer}}() : f32[4]
  %e = weight{expr=Source{name="e", dtype=f32, shape=[9, 4]}}() : f32[9, 4]
  %x = embedding(%e, %ids) : f32[B, S, 4]
  %p = cast{dtype=f32}(%positions) : f32[B, S]
  %v = view{shape=[B, S, 1]}(%p) : f32[B, S, 1]
  %mul_1 = binary{fn=mul}(%v, %far) : f32[B, S, 4]
  %cos_1 = unary{fn=cos}(%mul_1) : f32[B, S, 4]
  %mul_2 = binary{fn=mul}(%v, %near) : f32[B, S, 4]
  %cos_2_1 = unary{fn=cos}(%mul_2) : f32[B, S, 4]
  %unused = unary{fn=sin}(%mul_2) : f32[B, S, 4]
  %add_1 = binary{fn=add}(%x, FIRST) : f32[B, S, 4]
  %add_2 = binary{fn=add}(%add_1, SECOND) : f32[B, S, 4]
  outputs %add_2
}
"""


def test_one_order_for_any_trace() -> None:
    """`near` is used first: in one trace its table was computed last, in the other first."""
    one = ONE.replace("FIRST", "%cos_2_1").replace("SECOND", "%cos_1")
    other = ONE.replace('"far"', '"?"').replace('"near"', '"far"').replace('"?"', '"near"')
    other = other.replace("%far", "%?").replace("%near", "%far").replace("%?", "%near")
    other = other.replace("FIRST", "%cos_1").replace("SECOND", "%cos_2_1")
    texts = [print_graph(in_order_of_use(parse(text))) for text in (one, other)]
    assert texts[0] == texts[1]
    lines = [line.split(" = ")[0].strip() for line in texts[0].splitlines() if " = " in line]
    assert lines == ["%e", "%near", "%far", "%p", "%v", "%mul", "%cos", "%mul1", "%cos1", "%x", "%add", "%add1"]
    assert print_graph(parse(texts[0])) == texts[0]
