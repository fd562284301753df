"""A captured model whose weights were rounded beforehand: a checkpoint that holds them quantised, as others come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from llmc.compiler.capture.capture import Captured
from llmc.compiler.quality.gptq import gptq
from llmc.compiler.quality.units import Part as UnitPart
from llmc.compiler.quality.units import Tensors, Unit
from llmc.compiler.sources.checkpoint import Checkpoint, QuantisedTensor, Rows
from llmc.ir.formats import Numbers, Part, Scheme
from llmc.ir.graph import Graph
from llmc.ir.ops.constant import Apply, Dequantize, Source, Weight, WeightExpr
from llmc.ir.ops.pointwise import Cast
from llmc.ir.quantise import Quantised
from llmc.ir.types import DType, TensorType

TOKENS = 2048
_HESSIAN_BYTES = 1 << 30  # of units whose inputs are summed in one run of the model


def round_weights(
    captured: Captured,
    module: nn.Module,
    names: Mapping[Tensors, str],
    sequences: Sequence[Sequence[int]],
    units: Sequence[Unit],
    schemes: Mapping[str, Scheme],
    progress: Callable[[int, int], None],
) -> Captured:
    """The same model, with the weights of these units in the numbers of their modules' `schemes`, rounded by gptq. Left
    as they are: those that are not one tensor of the checkpoint in its own order, or stored quantised, and a table that
    an embedding reads as well."""
    ids = torch.tensor([list(ids) for ids in sequences])
    rounded: dict[str, QuantisedTensor] = {}
    can = {
        unit: [
            p for p in unit.parts if schemes[p.module].weight.group is not None and _plain(captured, module, names, p)
        ]
        for unit in units
    }
    total = sum(map(len, can.values()))
    for batch in _batches([unit for unit, parts in can.items() if parts]):
        sums = hessians(module, [names[can[unit][0].tensors] for unit in batch], ids)
        for unit, hessian in zip(batch, sums, strict=True):
            for part in can[unit]:
                weight = module.get_parameter(names[part.tensors]).detach().numpy()
                found = gptq(weight, hessian, schemes[part.module].weight)
                rounded[part.tensors[0]] = _tensor(part.tensors[0], found, captured.checkpoint)
                progress(len(rounded), total)
    checkpoint = Checkpoint({**captured.checkpoint.tensors, **rounded}, captured.checkpoint.metadata)
    return replace(captured, graph=_with(captured.graph, rounded), checkpoint=checkpoint)


def _plain(captured: Captured, module: Any, names: Mapping[Tensors, str], part: UnitPart) -> bool:
    name = names.get(part.tensors)
    if name is None or len(part.tensors) != 1 or isinstance(captured.checkpoint[part.tensors[0]], QuantisedTensor):
        return False
    weight = module.get_parameter(name)
    in_order = isinstance(module.get_submodule(name.rpartition(".")[0]), nn.Linear) and weight.shape == part.shape
    return in_order and weight is not module.get_input_embeddings().weight


def _batches(units: Sequence[Unit]) -> Iterator[list[Unit]]:
    batch: list[Unit] = []
    taken = 0
    for unit in units:
        size = 8 * unit.parts[0].shape[1] ** 2
        if batch and taken + size > _HESSIAN_BYTES:
            yield batch
            batch, taken = [], 0
        batch.append(unit)
        taken += size
    if batch:
        yield batch


def hessians(module: nn.Module, parameters: Sequence[str], ids: Tensor) -> list[NDArray[np.float64]]:
    """Of the inputs of the modules that hold these parameters: sums of their products, each input brought to one
    length: the few tokens with activations a thousand times as large, which a norm divides away again, are not all."""
    sums: dict[str, Tensor] = {}

    def add(name: str, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        x = given[0].flatten(0, -2)
        x = x / x.square().mean(-1, keepdim=True).sqrt().clamp(min=torch.finfo(x.dtype).tiny)
        sums[name] = sums.get(name, torch.zeros(())) + (x.T @ x).double()

    handles = [
        module.get_submodule(name.rpartition(".")[0]).register_forward_pre_hook(partial(add, name))
        for name in parameters
    ]
    try:
        with torch.no_grad():
            for one in ids.split(4):
                module(input_ids=one, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return [sums[name].numpy() for name in parameters]


def _tensor(name: str, found: Quantised, checkpoint: Checkpoint) -> QuantisedTensor:
    def read(part: Part, rows: Rows | None) -> NDArray[Any]:
        values = found.part(part)
        return values if rows is None else values[slice(*rows)]

    rows, columns = found.codes.shape
    return QuantisedTensor(name, found.numbers, (rows, columns), f"{checkpoint[name].origin}, rounded", read)


def _with(graph: Graph, rounded: Mapping[str, QuantisedTensor]) -> Graph:
    nodes = (
        replace(n, op=Weight(_replaced(n.op.expr, rounded))) if isinstance(n.op, Weight) else n for n in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


def _replaced(expr: WeightExpr, rounded: Mapping[str, QuantisedTensor]) -> WeightExpr:
    match expr:
        case Apply(Cast(DType.F32), (Source(name),)) | Source(name) if name in rounded:
            return _dequantised(name, rounded[name].numbers, rounded[name].shape)
        case Apply(op, args):
            return Apply(op, tuple(_replaced(arg, rounded) for arg in args))
    return expr


def _dequantised(name: str, numbers: Numbers, shape: tuple[int, int]) -> WeightExpr:
    types = {part: numbers.part_type(part, TensorType(DType.F32, shape)) for part in numbers.parts}
    return Apply(
        Dequantize(numbers), tuple(Source(name, t.dtype, t.static_shape(), part=part) for part, t in types.items())
    )
