"""Weights read back out of an engine's folder: which there are, by its graphs, and the values that its bytes stand for.

The inverse of weights.py, row range by row range like it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llmc.codegen.packing import PANEL, Bits, Packing, ScalePacking, stored_bytes, widen_bf16
from llmc.codegen.weights import PlacedWeight, place_weights, weight_exprs
from llmc.ir.formats import Packed, ScalePanels, Scheme
from llmc.ir.graph import Graph, Node
from llmc.ir.ops.constant import Weight, WeightExpr
from llmc.ir.ops.kernel import PackedLinear
from llmc.ir.parser import ParseError, parse_all
from llmc.ir.quantise import Quantised
from llmc.ir.types import DType, TensorType
from llmc.runtime.artifact.manifest import Manifest, TargetEntry
from llmc.runtime.errors import ManifestInvalid


def graphs_of(folder: Path, target: TargetEntry) -> list[Graph]:
    """A target's final graphs. Raises ManifestInvalid."""
    path = folder / target.plans / "graph.llmc"
    try:
        return parse_all(path.read_text())
    except (OSError, UnicodeDecodeError, ParseError) as error:
        raise ManifestInvalid(f"{path}: {error}") from error


def placed_in(folder: Path, manifest: Manifest) -> list[PlacedWeight]:
    """The weights of an engine, whole or hollow, as its graphs have them. Raises ManifestInvalid where the manifest has
    others."""
    exprs = {target.name: weight_exprs(graphs_of(folder, target)) for target in manifest.targets}
    placed = place_weights([expr for found in exprs.values() for expr in found])
    sizes = {w.expr: w.num_bytes for w in placed}
    for target in manifest.targets:
        found = sum(sizes[expr] for expr in exprs[target.name])
        if found != target.memory.weights_bytes:
            raise ManifestInvalid(
                f"{folder}: {target.name} has {target.memory.weights_bytes} bytes of weights, its graph {found}: "
                "prepare it again"
            )
    return placed


def schemes_of(folder: Path, target: TargetEntry) -> tuple[Scheme, ...]:
    """Of a target's linears, in the order of their first. Raises ManifestInvalid."""
    ops = [node.op for graph in graphs_of(folder, target) for node in graph.nodes]
    return tuple(dict.fromkeys(op.scheme for op in ops if isinstance(op, PackedLinear)))


@dataclass(frozen=True)
class EngineLinear:
    """A linear of an engine, and the bytes of its weight's parts."""

    node: Node
    exprs: tuple[WeightExpr, ...]
    parts: tuple[npt.NDArray[np.uint8], ...]

    @property
    def op(self) -> PackedLinear:
        assert isinstance(self.node.op, PackedLinear)
        return self.node.op

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.exprs[0].type.static_shape()
        return rows, columns

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """What rows [start, stop) of its weight stand for; `start` lies at a panel's first row."""
        assert start % PANEL == 0
        pairs = zip(self.exprs, self.parts, strict=True)
        parts = [_rows(expr.type, data, start, stop) for expr, data in pairs]
        numbers = self.op.scheme.weight
        if numbers.group is None:
            return parts[0].astype(np.float32)
        return Quantised.of(list(parts), numbers).floats().astype(np.float32)


def linears_of(graph: Graph, placed: list[PlacedWeight], file: memoryview, data_offset: int) -> Iterator[EngineLinear]:
    """The linears of a final graph, and their weights in the bytes of the engine's weights file."""
    where = {w.expr: w for w in placed}
    exprs = {n.output: n.op.expr for n in graph.nodes if isinstance(n.op, Weight)}
    for node in graph.nodes:
        if isinstance(node.op, PackedLinear):
            parts = tuple(exprs[v] for v in node.inputs[1 : 1 + node.op.num_parts])
            yield EngineLinear(node, parts, tuple(_bytes(where[e], file, data_offset) for e in parts))


def _bytes(weight: PlacedWeight, file: memoryview, data_offset: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(file, np.uint8, stored_bytes(weight.expr.type), data_offset + weight.offset)


def _rows(type_: TensorType, data: npt.NDArray[np.uint8], start: int, stop: int) -> npt.NDArray[np.generic]:
    """Rows of a part: codes as such, floats as float32."""
    layout = type_.layout
    if isinstance(layout, Packed):
        columns = type_.static_shape()[1]
        packing = Packing(layout.scheme, layout.order)
        size = packing.panel_bytes(columns) // packing.panel
        return _values(packing.unpack(_panels(data, size, start, stop, packing.panel), stop - start, columns), type_)
    if isinstance(layout, ScalePanels):
        groups = type_.static_shape()[1]
        scales = ScalePacking(layout.scheme, type_.dtype)
        size = scales.num_bytes(PANEL, groups) // PANEL
        return _values(scales.unpack(_panels(data, size, start, stop, PANEL), stop - start, groups), type_)
    shape = type_.static_shape()
    size = stored_bytes(type_) // shape[0]
    width = type_.dtype.num_bytes
    bits = data[start * size : stop * size].view(np.dtype(f"V{width}")).reshape(stop - start, *shape[1:])
    return _values(bits.view({1: np.uint8, 2: np.uint16, 4: np.float32}[width]), type_)


def _panels(data: npt.NDArray[np.uint8], row_bytes: int, start: int, stop: int, panel: int) -> npt.NDArray[np.uint8]:
    return data[start * row_bytes : -(-stop // panel) * panel * row_bytes]


def _values(bits: Bits, type_: TensorType) -> npt.NDArray[np.generic]:
    match type_.dtype:
        case DType.BF16:
            return widen_bf16(np.asarray(bits, np.uint16))
        case DType.F16:
            return np.asarray(bits).view(np.float16).astype(np.float32)
        case DType.I8:
            return np.asarray(bits).view(np.int8)
    return np.asarray(bits)
