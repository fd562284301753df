"""Which ops may stand in a graph between the phases of passes/pipeline.py.

The verifier holds every pass to the stage of its phase, so that an op that should be gone is named by the pass that
left it, and not by a backend that has no kernel for it.
"""

from __future__ import annotations

from llmc.ir.ops.attention import Attention, KvWrite, MaskDescriptor, PagedAttention
from llmc.ir.ops.constant import Scalar, Weight
from llmc.ir.ops.kernel import PackedLinear, QuantizeRows, RowKernel, Rows, Sample
from llmc.ir.ops.nn import Embedding, LayerNorm, RmsNorm, Rope, RopeTable
from llmc.ir.ops.pointwise import Binary, Cast, Unary, Where
from llmc.ir.ops.reduce import GatedLinear, Linear, MatMul, Reduce, Softmax
from llmc.ir.ops.shape import Arange, Concat, Expand, GatherRows, Permute, Slice, View
from llmc.ir.verify import OpTypes, Stage

_POINTWISE: OpTypes = frozenset({Scalar, Unary, Binary, Where, Cast})
_SHAPE: OpTypes = frozenset({View, Permute, Expand, Slice, Concat})
_ROW_WISE: OpTypes = _POINTWISE | _SHAPE | {GatherRows, Reduce, Softmax, LayerNorm, Embedding}
_NORMS_AND_ROPE: OpTypes = frozenset({RmsNorm, RopeTable, Rope})
_KERNEL_BODIES = {PackedLinear: _POINTWISE, Rows: _ROW_WISE | _NORMS_AND_ROPE | {QuantizeRows, KvWrite}}

_captured: OpTypes = _ROW_WISE | {Weight, Arange, MatMul, Linear, MaskDescriptor, Attention}
_tokens = _captured - {MaskDescriptor, Arange}
_raised = (_tokens - {MatMul}) | _NORMS_AND_ROPE
_sampled = _raised | {Sample}
_fused = _sampled | {GatedLinear}
_paged = (_fused - {Attention}) | {KvWrite, PagedAttention}
_lowered = (_paged - {Linear, GatedLinear}) | {PackedLinear, QuantizeRows} | RowKernel.all()

CAPTURED = Stage("captured", _captured)
TOKENS = Stage("tokens", _tokens)
RAISED = Stage("raised", _raised)
SAMPLED = Stage("sampled", _sampled)
FUSED = Stage("fused", _fused, {GatedLinear: _POINTWISE})
PAGED = Stage("paged", _paged, {GatedLinear: _POINTWISE})
LOWERED = Stage("lowered", _lowered, _KERNEL_BODIES)
KERNELS = Stage("kernels", frozenset({Weight, PackedLinear, PagedAttention, Rows}) | RowKernel.all(), _KERNEL_BODIES)

STAGES = (CAPTURED, TOKENS, RAISED, SAMPLED, FUSED, PAGED, LOWERED, KERNELS)
