"""Rows bodies of real models: captured graphs through the whole pipeline, lowered for CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmc.ir.formats import Scheme, WeightLayout
from llmc.ir.graph import Graph, Value
from llmc.ir.ops.constant import Weight
from llmc.ir.ops.kernel import Rows
from llmc.ir.reference import weight
from llmc.passes.pipeline import default_pipeline, run_pipeline
from llmc.passes.rewrite import RuleLog
from tests.models.captured import read


@dataclass(frozen=True)
class Body:
    """A body, where it was found, and the values of its weights."""

    where: str
    graph: Graph
    weights: dict[Value, npt.NDArray[np.generic]]


def bodies(captured: Graph, scheme: Scheme = Scheme.BF16) -> Iterator[Body]:
    """Of both entries, in order."""
    vocab = int(str(captured.outputs[0].tensor.shape[-1]))
    pipeline = default_pipeline(scheme, vocab, WeightLayout.ROWS)
    for entry in run_pipeline(captured, pipeline, RuleLog(), lambda *_: None):
        exprs = {n.output: n.op.expr for n in entry.nodes if isinstance(n.op, Weight)}
        for number, node in enumerate(entry.nodes):
            if isinstance(node.op, Rows):
                inside = zip(node.inputs, node.op.body.inputs, strict=True)
                values = {inner: weight(exprs[outer], read) for outer, inner in inside if outer in exprs}
                yield Body(f"{entry.name}-{number}", node.op.body, values)
