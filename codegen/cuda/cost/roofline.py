"""How long a kernel is expected to take on a GPU: a small model over codegen/roofline.py's floors. All predicted.

    seconds = for each launch: gap + ramp + its blocks over the multiprocessors (codegen/cuda/cost/launches.py)

The launches are those that a build makes: their grids, splits and blocks are what the kernels' parameters say. Linears
are as their choice between candidates sees them (codegen/cuda/linear/cost.py), so that a choice and a prediction are of
one mind. docs/roofline.md discusses the assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

from llmc.codegen.cuda.attention.cost import attention_work, rates_of, workspace_bytes
from llmc.codegen.cuda.attention.forms import attention_forms
from llmc.codegen.cuda.attention.params import AttentionParams
from llmc.codegen.cuda.cost.launches import BlockWork, LaunchWork, launch_seconds, resident
from llmc.codegen.cuda.kernel import KernelParams
from llmc.codegen.cuda.linear.cost import cost
from llmc.codegen.cuda.linear.variants import LinearVariant, variants
from llmc.codegen.cuda.plan.kv import CudaKvSlot
from llmc.codegen.cuda.row_kernels import RowParams, counted, row_kernel
from llmc.codegen.cuda.target.assumptions import ASSUMED
from llmc.codegen.cuda.target.gpus import Gpu
from llmc.codegen.roofline import Estimate, Machine, memory_bytes
from llmc.codegen.work import Slot, Step, Unit, Work, slots
from llmc.ir.dims import evaluate
from llmc.ir.graph import Graph, IRError, Node
from llmc.ir.ops.attention import PagedAttention
from llmc.ir.ops.kernel import PackedLinear


def machine(gpu: Gpu) -> Machine:
    return Machine(gpu.bandwidth, gpu.l2_bytes, gpu.peaks)


def matrix_rate(unit: Unit, gpu: Gpu) -> float | None:
    """Operations per second that mma.sync can reach; None where the GPU has no such unit."""
    peak = gpu.peaks.of(unit)
    if peak is None or unit is Unit.F32:
        return peak
    return peak * (ASSUMED.mma_sync if gpu.mma_sync is None else gpu.mma_sync)


@dataclass(frozen=True, eq=False)
class Launched:
    """A kernel-level graph as a build for a GPU launches it."""

    graph: Graph
    gpu: Gpu

    def estimate(self, node: Node, work: Work, step: Step) -> Estimate | None:
        """Expected seconds of a node with this work; None where the GPU, or our kernels, lack its arithmetic."""
        match node.op:
            case PackedLinear() as op:
                return _linear(node, op, step, self.gpu)
            case PagedAttention() as op:
                return self._attention(node, op, work, step)
        return self._by_row(node, work, step)

    def _launch(self, work: LaunchWork, p: KernelParams) -> float:
        """Seconds with the launch itself; one whose blocks all return at once is a gap."""
        ramp = ASSUMED.ramp if work.blocks else 0.0
        return _gap(self.gpu) + ramp + launch_seconds(work, resident(p, self.gpu), self.gpu)

    def _attention(self, node: Node, op: PagedAttention, work: Work, step: Step) -> Estimate | None:
        matrix, kernels = matrix_rate(work.matrix_unit, self.gpu), self._forms.get(node)
        if matrix is None or kernels is None:
            return None
        rates, layer = rates_of(matrix, self.vector, self.gpu), kernels[0].layer
        seconds, notes = 0.0, []
        for p in kernels:
            each = attention_work(p, op.mask, step, self.gpu, rates, work.activations)
            seconds += self._launch(each, p)
            if each.blocks:
                notes.append(f"{p.template.removeprefix('attention_')} {plural(each.blocks)}")
        if step.new == 1:
            notes.append(f"{workspace_bytes(layer, op.mask, step)} B between them")
        return Estimate(seconds, len(kernels), ", ".join(notes))

    def _by_row(self, node: Node, work: Work, step: Step) -> Estimate | None:
        """A block for each row. Of its bytes those cross the memory bus that the floor counts; L2 has the others."""
        p = self._row_kernels.get(node)
        if p is None:
            return None
        rows = evaluate(counted(node).shape[0], step.sizes)
        from_memory = memory_bytes(work, self.gpu.l2_bytes)
        seconds = work.vector_flops / rows * self.gpu.sms / self.vector / ASSUMED.vector
        block = BlockWork(from_memory / rows, (work.num_bytes - from_memory) / rows, seconds)
        asked = 16 * p.threads * p.loads_in_flight
        each = LaunchWork(((rows, block),), min(asked, work.num_bytes / rows))
        return Estimate(self._launch(each, p), 1, plural(rows))

    @property
    def vector(self) -> float:
        """Operations per second of all vector units."""
        assert self.gpu.peaks.f32 is not None, f"{self.gpu.name}: no f32 rate"
        return self.gpu.peaks.f32

    @cached_property
    def _forms(self) -> dict[Node, tuple[AttentionParams, ...]]:
        """The kernels of each attention that has kernels. In a decode step all sequences are single tokens."""
        cached = slots(self.graph)
        found = {}
        for node in self.graph.nodes:
            if isinstance(node.op, PagedAttention):
                try:
                    found[node] = self._forms_of(node, node.op, cached[node.op.slot])
                except (IRError, ValueError):  # no kernel takes such heads, or such a cache
                    continue
        return found

    def _forms_of(self, node: Node, op: PagedAttention, cached: Slot) -> tuple[AttentionParams, ...]:
        slot = CudaKvSlot(cached.kv_heads, cached.head_dim, cached.value_dim, cached.dtype, 0)
        forms = attention_forms(op, node.inputs[1].tensor, slot, self.gpu)
        return forms.decode if self.graph.name == "decode" else forms.mixed

    @cached_property
    def _row_kernels(self) -> dict[Node, RowParams]:
        """Of each node that works row by row and has a kernel."""
        found: dict[Node, RowParams] = {}
        for node in self.graph.nodes:
            try:
                found[node] = row_kernel(node, lambda value: value in self.graph.inputs)
            except (IRError, ValueError):  # an op or a type that no such kernel takes
                continue
        return found


def _linear(node: Node, op: PackedLinear, step: Step, gpu: Gpu) -> Estimate | None:
    """Of the kernel that a build takes for this many rows, by the cost that it was chosen by (linear/variants.py,
    linear/cost.py); but matrix units reach less than their peak there, too. None for schemes without CUDA kernels."""
    k = evaluate(node.inputs[1].tensor.shape[1], {})
    m, n = (evaluate(d, step.sizes) for d in node.output.tensor.shape)
    try:
        found = _variants(op, n, k, gpu)
    except IRError:
        return None
    params = next(v.params for v in found if v.up_to is None or m <= v.up_to)
    at = cost(params, m, gpu)
    streams = max(at.load, at.multiply)
    seconds = at.seconds - streams + max(at.load, at.multiply / ASSUMED.matrix)
    tile = params.tile
    cut = f", K in {params.shape.num_slices} slices, {tile.slices.value}" if params.shape.num_slices > 1 else ""
    note = f"{tile.out}x{tile.tokens} {params.template.removeprefix('linear_')}{cut}: {plural(at.blocks)}"
    return Estimate(_gap(gpu) + seconds, 1, note)


@cache
def _variants(op: PackedLinear, n: int, k: int, gpu: Gpu) -> list[LinearVariant]:
    return variants(op, n, k, gpu)


def _gap(gpu: Gpu) -> float:
    return ASSUMED.gap_dependent if gpu.has("pdl") else ASSUMED.gap


def plural(blocks: int) -> str:
    return f"{blocks} block{'s' if blocks != 1 else ''}"
