"""How far each linear of an engine is from the source's: its weight, and what that does to its output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import sqrt

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from llmc.codegen.engine_weights import EngineLinear, graphs_of, linears_of, placed_in
from llmc.codegen.weights import Evaluator
from llmc.compiler.verify.certificate import LayerError, rounded
from llmc.compiler.verify.reference import SourceModel
from llmc.ir.formats import Part
from llmc.ir.ops.constant import Apply, Interleave, Origin, Pack, Quantize, Source, WeightExpr
from llmc.ir.ops.pointwise import Cast
from llmc.ir.types import DType
from llmc.passes.linears import JOINED
from llmc.runtime.artifact.artifact import Artifact

_EVERY = 8  # of so many positions one is kept: 64 of the usual 512
_ROWS = 4096  # of a weight at a time
F32 = npt.NDArray[np.float32]


class Layers:
    """The linears of an engine's target. While `watching` the source's module runs, what they read is kept."""

    def __init__(self, artifact: Artifact) -> None:
        (graph,) = (g for g in graphs_of(artifact.folder, artifact.target) if g.name == "decode")
        placed = placed_in(artifact.folder, artifact.manifest)
        self._linears = list(linears_of(graph, placed, artifact.weights.view, artifact.weights.data_offset))
        self._inputs: dict[str, list[F32]] = {}

    @contextmanager
    def watching(self, module: nn.Module) -> Iterator[None]:
        paths = {_first(linear) for linear in self._linears}
        handles = [
            part.register_forward_pre_hook(partial(self._keep, path))
            for path, part in module.named_modules()
            if path in paths
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _keep(self, path: str, module: nn.Module, given: tuple[Tensor, ...]) -> None:
        if given and given[0].dim() == 3:
            self._inputs.setdefault(path, []).append(given[0][0, ::_EVERY].numpy().copy())

    def errors(self, model: SourceModel) -> Iterator[LayerError]:
        """In order."""
        for linear in self._linears:
            kept = self._inputs.get(_first(linear))
            found = _error(linear, model, None if kept is None else np.concatenate(kept))
            if found is not None:
                yield found


def _first(linear: EngineLinear) -> str:
    """The first of the modules that were joined: all read the same input."""
    return linear.node.loc.split(JOINED)[0]


def _error(linear: EngineLinear, model: SourceModel, x: F32 | None) -> LayerError | None:
    source = _floats(linear.exprs[0])
    if not _of_checkpoint(source):
        return None
    evaluator = Evaluator(model.reader)
    sums = np.zeros(4)
    num_rows, columns = linear.shape
    x = x if x is not None and x.shape[1] == columns else None
    for start in range(0, num_rows, _ROWS):
        stop = min(num_rows, start + _ROWS)
        right = np.asarray(evaluator.rows(source, start, stop), np.float32)
        wrong = linear.rows(start, stop) - right
        sums[:2] += _squares(wrong), _squares(right)
        if x is not None:
            sums[2:] += _squares(x @ wrong.T), _squares(x @ right.T)
    output = None if x is None else _ratio(sums[2], sums[3])
    return LayerError(linear.node.loc, str(linear.op.scheme), _ratio(sums[0], sums[1]), output)


def _squares(values: F32) -> float:
    return float(np.vdot(values, values))


def _ratio(error: float, whole: float) -> float:
    return rounded(sqrt(error / whole)) if whole else rounded(sqrt(error))


def _floats(expr: WeightExpr) -> WeightExpr:
    """What a packed weight was made of, before it was rounded."""
    match expr:
        case Apply(Pack(), (arg,)):
            return _floats(arg)
        case Apply(Interleave() as op, args):
            return Apply(op, tuple(map(_floats, args)))
        case Apply(Quantize(), (arg,)):
            return arg
        case Apply(Cast(dtype), (arg,)) if dtype is not DType.F32:
            return arg
        case Source(name, _, shape, part=Part.DATA):  # stored so: as the checkpoint's own floats
            return Source(name, DType.F32, shape)
        case Apply(op, args):
            return Apply(op, tuple(map(_floats, args)))
    return expr


def _of_checkpoint(expr: WeightExpr) -> bool:
    match expr:
        case Source():
            return expr.origin is Origin.PARAMETER
        case Apply(_, args):
            return all(map(_of_checkpoint, args))
    return True
