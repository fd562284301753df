"""Kernel-level ops: one node is one launch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from llmc.ir.formats import Groups, Scheme, row_numbers
from llmc.ir.graph import Graph, IRError, Op
from llmc.ir.ops.pointwise import tensors
from llmc.ir.types import DType, TensorType, Type

GATE_RUN = 16  # consecutive rows of each matrix in a gated weight


@dataclass(frozen=True)
class QuantizeRows(Op):
    """x f32[T, K] -> i8[T, K], per group of a row: scale = max|x| / 127, data = round_half_even(x / scale).

    A group is `group` columns (the last may be shorter), 0: the whole row.
    """

    group: int

    def infer(self, *types: Type) -> tuple[Type, ...]:
        (x,) = tensors(types, 1)
        if x.rank != 2:
            raise IRError(f"quantize_rows of {x}: expected [T, K]")
        return (TensorType(DType.I8, x.shape, Groups(self.group)),)


@dataclass(frozen=True)
class PackedLinear(Op):
    """A linear on operands in its scheme's numbers, with what follows it fused as an epilogue.

    Inputs: x [T, K], the parts of w [N, K] (its data, then its scales if it has any), then what the epilogue reads.
    The epilogue is a body of pointwise nodes: its inputs are the result f32[T, N] and then the node's remaining
    inputs; its output is the node's output. `gated` weights interleave runs of 16 rows of two matrices: the epilogue's
    first two inputs are then the two results f32[T, n].
    """

    scheme: Scheme
    epilogue: Graph
    gated: bool = False

    def infer(self, *types: Type) -> tuple[Type, ...]:
        inputs = tensors(types, len(types))
        x, *rest = inputs
        parts, extra = rest[: self.num_parts], rest[self.num_parts :]
        self._check_operands(x, parts)
        results = self.epilogue.inputs[: 1 + self.gated]
        if len(self.epilogue.inputs) != len(results) + len(extra):
            raise IRError(f"packed_linear: epilogue has {len(self.epilogue.inputs)} inputs for {len(extra)} operands")
        for value, given in zip(self.epilogue.inputs[len(results) :], extra, strict=True):
            if value.type != given:
                raise IRError(f"packed_linear: epilogue input %{value.name} is {value.type}, operand is {given}")
        if any(r.tensor.shape[0] != x.shape[0] for r in results):
            raise IRError("packed_linear: the epilogue's rows are not the input's")
        return tuple(v.type for v in self.epilogue.outputs)

    @property
    def num_parts(self) -> int:
        """Inputs that the weight takes, the first its data."""
        return len(self.scheme.weight.parts)

    def _check_operands(self, x: TensorType, parts: list[TensorType]) -> None:
        if x.rank != 2 or not parts or parts[0].rank != 2 or x.shape[1] != parts[0].shape[1]:
            raise IRError(f"packed_linear of {x} with {', '.join(map(str, parts))}: inner dims differ")
        if row_numbers(x) != self.scheme.operand:
            raise IRError(f"packed_linear in {self.scheme} of {x}: expected rows of {self.scheme.operand}")
        if misfit := self.scheme.weight.misfit(parts):
            raise IRError(f"packed_linear in {self.scheme} with a weight {', '.join(map(str, parts))}: {misfit}")


@dataclass(frozen=True)
class Rows(Op):
    """A body of row-wise nodes run as one kernel: row t of every output depends on row t of the inputs alone.

    Body inputs are the node's inputs in order: tensors of T rows, weights without rows, the cache.
    """

    body: Graph

    def infer(self, *types: Type) -> tuple[Type, ...]:
        if tuple(v.type for v in self.body.inputs) != types:
            want = ", ".join(str(v.type) for v in self.body.inputs)
            raise IRError(f"rows: body takes ({want}), given ({', '.join(map(str, types))})")
        return tuple(v.type for v in self.body.outputs)


class RowKernel(ABC):
    """An op that is a launch of its own and works row by row, for what no body of nodes says.

    What is known of it stands here and with its kernels (codegen/cuda/row_kernels.py, codegen/cpu/model.py), so that
    another is added there alone.
    """

    flops: ClassVar[int]  # f32 operations for each element of its inputs

    @abstractmethod
    def meaning(self, *inputs: NDArray[Any]) -> NDArray[Any]:
        """Of its output, for the interpreter."""

    @staticmethod
    def all() -> frozenset[type[Op]]:
        return frozenset(op for op in Op.mnemonics.values() if issubclass(op, RowKernel))


@dataclass(frozen=True)
class Sample(Op, RowKernel):
    """logits f32[R, V] -> token ids i32[R] by each row's sampling parameters, which are part of the step.

    Ids from num_valid_tokens on have no text and are never chosen.
    """

    num_valid_tokens: int
    flops: ClassVar[int] = 6  # temperature, maximum, subtract, exponential, sum, compare

    def infer(self, *types: Type) -> tuple[Type, ...]:
        (logits,) = tensors(types, 1)
        if logits.rank != 2:
            raise IRError(f"sample of {logits}: expected f32[R, V]")
        width = logits.static_row_width()
        if not 1 <= self.num_valid_tokens <= width:
            raise IRError(f"sample of {logits}: num_valid_tokens is {self.num_valid_tokens}, expected 1..{width}")
        return (TensorType(DType.I32, (logits.shape[0],)),)

    def meaning(self, *inputs: NDArray[Any]) -> NDArray[Any]:
        """The parameters of a row are no part of the graph: greedy, the lowest id on ties."""
        (logits,) = inputs
        return np.asarray(np.argmax(logits[:, : self.num_valid_tokens], 1), np.int32)
