"""torch's symbolic sizes as IR dims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from llmc.compiler.capture.errors import CaptureError
from llmc.ir.dims import Dim, Poly, sym
from llmc.ir.types import DType, TensorType

_DTYPES = {
    torch.float32: DType.F32,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.int8: DType.I8,
    torch.uint8: DType.U8,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.bool: DType.BOOL,
}


def ir_dtype(dtype: torch.dtype, where: str) -> DType:
    """The IR's dtype. CaptureError for one it does not have."""
    if dtype not in _DTYPES:
        raise CaptureError(f"{where}: computes in {dtype}, which llmc does not have")
    return _DTYPES[dtype]


@dataclass(frozen=True)
class Sizes:
    """The dims that torch's symbols stand for: B and S of the traced ids."""

    symbols: dict[str, Poly]

    @classmethod
    def of(cls, program: ExportedProgram) -> Sizes:
        for node in program.graph.nodes:
            if node.op == "placeholder" and node.name == "ids":
                batch, seq = node.meta["val"].shape
                return cls({str(batch.node.expr): sym("B"), str(seq.node.expr): sym("S")})
        raise AssertionError("the traced graph has no ids")

    def dim(self, size: int | torch.SymInt, where: str) -> Dim:
        """A size as a polynomial of B and S. CaptureError where it is none."""
        if isinstance(size, int):
            return size
        found = self._poly(size.node.expr)
        if found is None:
            raise CaptureError(f"{where}: a size of {size.node.expr} is not a sum of products of batch and sequence")
        return found

    def type(self, tensor: torch.Tensor, where: str) -> TensorType:
        return TensorType(ir_dtype(tensor.dtype, where), tuple(self.dim(size, where) for size in tensor.shape))

    def _poly(self, expr: Any) -> Dim | None:
        """A sympy expression as a dim; sympy is torch's own representation of sizes."""
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            return self.symbols.get(str(expr))
        parts = [self._poly(arg) for arg in expr.args]
        if expr.is_Pow and isinstance(parts[1], int) and parts[1] > 0:
            parts = [parts[0]] * parts[1]
        elif not (expr.is_Add or expr.is_Mul):
            return None
        total: Dim = 0 if expr.is_Add else 1
        for part in parts:
            if part is None:
                return None
            total = total + part if expr.is_Add else total * part
        return total
