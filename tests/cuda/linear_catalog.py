"""Linears for the catalog: each tile and each way through the slices, at Llama-3.1-8B's and SmolLM2's sizes."""

from __future__ import annotations

from llmc.codegen.cuda.linear.epilogue import LinearEpilogue, write_epilogue
from llmc.codegen.cuda.linear.params import (
    CountedBy,
    LinearMmaParams,
    LinearParams,
    LinearShape,
    LinearTile,
    LinearWgmmaParams,
    Slices,
)
from llmc.ir.dims import sym
from llmc.ir.formats import Scheme
from llmc.ir.graph import Builder, Graph, Value
from llmc.ir.ops.kernel import PackedLinear
from llmc.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, UnaryFn
from llmc.ir.types import DType, tensor

PARALLEL, SEQUENTIAL = Slices.PARALLEL, Slices.SEQUENTIAL
TOKENS, ROWS = CountedBy.TOKENS, CountedBy.ROWS


def residual(width: int) -> LinearEpilogue:
    """y + residual, float32."""
    b = Builder()
    y, r = (Value(tensor(DType.F32, sym("T"), width), name) for name in ("y", "residual"))
    out = b.add(Binary(BinaryFn.ADD), r, y)
    return write_epilogue(PackedLinear(Scheme.BF16, Graph("epilogue", (y, r), (out,), tuple(b.nodes))))


def rounded(width: int, dtype: DType) -> LinearEpilogue:
    """The sums in a half format, an operand for the next kernel."""
    b = Builder()
    y = Value(tensor(DType.F32, sym("T"), width), "y")
    out = b.add(Cast(dtype), y)
    return write_epilogue(PackedLinear(Scheme.BF16, Graph("epilogue", (y,), (out,), tuple(b.nodes))))


def logits(width: int) -> LinearEpilogue:
    y = Value(tensor(DType.F32, sym("R"), width), "y")
    return write_epilogue(PackedLinear(Scheme.BF16, Graph("epilogue", (y,), (y,), ())))


def swiglu(width: int) -> LinearEpilogue:
    """silu(gate) * up in bf16."""
    b = Builder()
    gate, up = (Value(tensor(DType.F32, sym("T"), width), name) for name in ("gate", "up"))
    product = b.add(Binary(BinaryFn.MUL), b.add(Unary(UnaryFn.SILU), gate), up)
    out = b.add(Cast(DType.BF16), product)
    return write_epilogue(PackedLinear(Scheme.BF16, Graph("epilogue", (gate, up), (out,), tuple(b.nodes)), gated=True))


_DOWN = LinearShape(DType.BF16, 4096, 14336, 3584)
_SMALL = LinearShape(DType.BF16, 576, 1536, 384)
_GATE_UP = LinearShape(DType.BF16, 14336, 4096, 4096, gated=True)
_HEAD = LinearShape(DType.BF16, 49152, 576, 576)
_F16 = LinearShape(DType.F16, 4096, 4096, 2048)
_ODD = LinearShape(DType.BF16, 1001, 579, 256)

LINEARS: tuple[LinearParams, ...] = (
    LinearMmaParams(_SMALL, LinearTile(64, 8, PARALLEL), TOKENS, 8, residual(576), 4, 1),
    LinearMmaParams(_DOWN, LinearTile(64, 16, PARALLEL), TOKENS, 6, residual(4096), 4, 1),
    LinearMmaParams(_GATE_UP, LinearTile(128, 32, SEQUENTIAL), TOKENS, 4, swiglu(14336), 4, 1),
    LinearMmaParams(_DOWN, LinearTile(128, 64, PARALLEL), TOKENS, 3, residual(4096), 4, 2),
    LinearMmaParams(_DOWN, LinearTile(128, 128, SEQUENTIAL), TOKENS, 3, residual(4096), 2, 4),
    LinearMmaParams(_GATE_UP, LinearTile(128, 128, SEQUENTIAL), TOKENS, 3, swiglu(14336), 2, 4),
    LinearMmaParams(_HEAD, LinearTile(128, 8, SEQUENTIAL), ROWS, 4, logits(49152), 8, 1),
    LinearMmaParams(_F16, LinearTile(64, 64, SEQUENTIAL), TOKENS, 4, rounded(4096, DType.F16), 2, 2),
    LinearMmaParams(_ODD, LinearTile(64, 128, SEQUENTIAL), TOKENS, 3, rounded(1001, DType.BF16), 2, 4),
    LinearWgmmaParams(_SMALL, LinearTile(64, 8, PARALLEL), TOKENS, 12, residual(576)),
    LinearWgmmaParams(_DOWN, LinearTile(64, 16, PARALLEL), TOKENS, 11, residual(4096)),
    LinearWgmmaParams(_GATE_UP, LinearTile(128, 32, SEQUENTIAL), TOKENS, 5, swiglu(14336)),
    LinearWgmmaParams(_DOWN, LinearTile(64, 64, PARALLEL), TOKENS, 12, residual(4096)),
    LinearWgmmaParams(_DOWN, LinearTile(128, 128, SEQUENTIAL), TOKENS, 7, residual(4096)),
    LinearWgmmaParams(_GATE_UP, LinearTile(128, 256, SEQUENTIAL), TOKENS, 4, swiglu(14336)),
    LinearWgmmaParams(_HEAD, LinearTile(128, 8, SEQUENTIAL), ROWS, 6, logits(49152)),
    LinearWgmmaParams(_F16, LinearTile(128, 64, SEQUENTIAL), TOKENS, 9, rounded(4096, DType.F16)),
    LinearWgmmaParams(_ODD, LinearTile(64, 128, SEQUENTIAL), TOKENS, 4, rounded(1001, DType.BF16)),
)
