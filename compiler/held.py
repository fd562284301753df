"""What the weights of an engine are held in, and which of them the source held in other low bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from llmc.compiler.sources.checkpoint import Checkpoint, QuantisedTensor, StoredTensor
from llmc.ir.formats import Packed, Part, Scheme
from llmc.ir.graph import Graph
from llmc.ir.ops.constant import Apply, Dequantize, Quantize, Source, WeightExpr
from llmc.ir.ops.kernel import PackedLinear
from llmc.ir.types import DType


def dtypes_of(entry: Graph) -> str:
    """The schemes of the linears, joined with `+`: those of most weights first."""
    weights: Counter[Scheme] = Counter()
    for node in entry.nodes:
        if isinstance(node.op, PackedLinear):
            rows, columns = node.inputs[1].tensor.static_shape()
            weights[node.op.scheme] += rows * columns
    return "+".join(str(scheme) for scheme, _ in weights.most_common())


def rounded_again(exprs: Iterable[WeightExpr], checkpoint: Checkpoint) -> list[str]:
    """A notice of the tensors that the source has in low bits, and the engine in others; none where there are none."""
    found: dict[tuple[str, str], set[str]] = {}
    for expr in exprs:
        held = _held_in(expr)
        for leaf, as_values in _leaves(expr) if held != DType.F32.value else ():
            stored = _low_bits(checkpoint, leaf, as_values)
            if stored is not None:
                found.setdefault((stored, held), set()).add(leaf.name)
    told = [f"{stored} x{len(names)} to {held}" for (stored, held), names in sorted(found.items())]
    return [f"weights that the source has in low bits are rounded again: {', '.join(told)}"] if told else []


def _held_in(expr: WeightExpr) -> str:
    layout = expr.type.layout
    return str(layout.scheme) if isinstance(layout, Packed) else expr.type.dtype.value


def _leaves(expr: WeightExpr, as_values: bool = False) -> Iterator[tuple[Source, bool]]:
    """The tensors that codes or values are made of, and whether their parts were put together on the way."""
    match expr:
        case Source():
            yield expr, as_values
        case Apply(Quantize(_, part), _) if part is not Part.DATA:
            return
        case Apply(op, args):
            for arg in args:
                yield from _leaves(arg, as_values or isinstance(op, Dequantize))


def _low_bits(checkpoint: Checkpoint, leaf: Source, as_values: bool) -> str | None:
    """What a tensor that is taken as values was stored in, if not as floats."""
    if leaf.name not in checkpoint:
        return None  # a buffer
    tensor = checkpoint[leaf.name]
    if isinstance(tensor, StoredTensor):
        return tensor.dequantised_from
    assert isinstance(tensor, QuantisedTensor)
    return str(Scheme.of(tensor.numbers)) if as_values else None
