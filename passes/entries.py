"""The entries of an engine: prefill computes logits of chosen rows, decode of every row."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.ir.dims import sym
from llmc.ir.graph import Builder, Graph, Node, Value, eliminate_dead_code
from llmc.ir.ops.kernel import Sample
from llmc.ir.ops.nn import LayerNorm, RmsNorm
from llmc.ir.ops.pointwise import Binary, Cast, Unary, Where
from llmc.ir.ops.reduce import Linear, Reduce, Softmax
from llmc.ir.ops.shape import GatherRows
from llmc.ir.types import DType, TensorType
from llmc.passes.rewrite import RuleLog

_ROW_WISE = (Linear, RmsNorm, LayerNorm, Unary, Binary, Cast, Where, Softmax, Reduce)


@dataclass(frozen=True)
class SampleRows:
    """Only the rows that are sampled get logits: gather them as early as rows stay independent.

    Adds input %rows i32[R] and makes the outputs logits f32[R, V] and tokens i32[R].
    """

    num_valid_tokens: int

    def run(self, graph: Graph, log: RuleLog) -> Graph:
        rows = Value(TensorType(DType.I32, (sym("R"),)), "rows")
        tokens = graph.input("ids").tensor.shape[0]
        producers = graph.producers()
        full = _needed_whole(graph, producers)
        b = Builder()
        gathered: dict[Value, Value] = {}

        def gather(value: Value) -> Value:
            if value.tensor.shape[:1] != (tokens,):
                return value
            if value not in gathered:
                node = producers.get(value)
                if node is not None and isinstance(node.op, _ROW_WISE) and value not in full:
                    inputs = [gather(v) for v in node.inputs]
                    gathered[value] = b.add(node.op, *inputs, loc=node.loc, name=value.name)
                    log.applied["gather-before-" + node.op.mnemonic()] += 1
                else:
                    gathered[value] = b.add(GatherRows(), value, rows, loc=node.loc if node else "")
            return gathered[value]

        (logits,) = graph.outputs
        logits = gather(logits)
        logits.name = "logits"
        chosen = b.add(Sample(self.num_valid_tokens), logits, name="tokens")
        nodes = (*graph.nodes, *b.nodes)
        return eliminate_dead_code(Graph(graph.name, (*graph.inputs, rows), (logits, chosen), nodes))


def _needed_whole(graph: Graph, producers: dict[Value, Node]) -> set[Value]:
    """Values of all rows that something other than the sampled rows needs: attention of this or a later layer."""
    needed: set[Value] = set()
    stack = [v for n in graph.nodes if not isinstance(n.op, _ROW_WISE) for v in n.inputs]
    while stack:
        value = stack.pop()
        if value not in needed:
            needed.add(value)
            stack += producers[value].inputs if value in producers else ()
    return needed


def decode_entry(graph: Graph) -> Graph:
    """The prefill graph for steps in which every token is sampled: the rows are the tokens, in order."""
    new_of: dict[Value, Value] = {}
    b = Builder()
    for node in graph.nodes:
        inputs = tuple(new_of.get(v, v) for v in node.inputs)
        if isinstance(node.op, GatherRows) and node.inputs[1].name == "rows":
            new_of[node.output] = inputs[0]
            continue
        outputs = b.add_multi(node.op, *inputs, loc=node.loc)
        for old, new in zip(node.outputs, outputs, strict=True):
            new.name = old.name
            new_of[old] = new
    kept = tuple(v for v in graph.inputs if v.name != "rows")
    return Graph("decode", kept, tuple(new_of.get(v, v) for v in graph.outputs), tuple(b.nodes))
