"""transformers' checkpoint conversions (split, merge, transpose …) as weight expressions.

A conversion is torch code. It is traced on meta tensors and imported like a model's own code, so that its result is
an expression over the checkpoint's tensors and no data moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import PreTrainedModel
from transformers.core_model_loading import WeightConverter

from llmc.compiler.capture import aten_layers, aten_pointwise, aten_shape  # noqa: F401  (registers handlers)
from llmc.compiler.capture.errors import CaptureError
from llmc.compiler.capture.importer import Importer
from llmc.compiler.capture.sizes import Sizes
from llmc.ir.graph import Builder, Node, Value
from llmc.ir.ops.constant import Apply, Literal, Scalar, Weight, WeightExpr


def converted(
    converter: WeightConverter, target: str, sources: Sequence[tuple[str, str, WeightExpr]], model: PreTrainedModel
) -> dict[str, WeightExpr]:
    """Parameter name -> expression, for what `converter` makes of (checkpoint key, its pattern, tensor) sources.

    `target` is the first parameter it fills. CaptureError where it does what the importer cannot express.
    """
    names: list[str] = []

    def convert(*tensors: torch.Tensor) -> list[torch.Tensor]:
        fresh = deepcopy(converter)
        for (key, pattern, _), tensor in zip(sources, tensors, strict=True):
            fresh.add_tensor(target, key, pattern, tensor)  # type: ignore[arg-type]
        made = fresh.convert(target, model=model, config=model.config)
        names[:] = made
        return [value[0] if isinstance(value, list) else value for value in made.values()]

    metas = [torch.empty(expr.type.static_shape(), device="meta") for _, _, expr in sources]
    try:
        graph = make_fx(convert)(*metas).graph
    except Exception as error:
        raise CaptureError(f"{target}: transformers' conversion of its checkpoint tensors failed: {error}") from error
    builder = Builder()
    given = [builder.add(Weight(expr)) for _, _, expr in sources]
    importer = Importer(builder, Sizes({}), given[0])
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    importer.env.update(zip(placeholders, given, strict=True))
    importer.run(graph)
    (output,) = (node for node in graph.nodes if node.op == "output")
    exprs = _expressions(builder.nodes)
    results = [importer.env[node] for node in output.args[0]]
    return {name: exprs[value] for name, value in zip(names, results, strict=True) if isinstance(value, Value)}


def _expressions(nodes: Sequence[Node]) -> Mapping[Value, WeightExpr]:
    exprs: dict[Value, WeightExpr] = {}
    for node in nodes:
        match node.op:
            case Weight(expr):
                exprs[node.output] = expr
            case Scalar(value, dtype):
                exprs[node.output] = Literal(value, dtype)
            case op:
                exprs[node.output] = Apply(op, tuple(exprs[value] for value in node.inputs))
    return exprs
