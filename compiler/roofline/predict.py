"""Predictions of a model on a target: what each kernel moves and computes, the least time for it, the time expected.

Plain data that `llmc inspect --roofline` prints and writes as JSON. Nothing in it was measured on the target.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from llmc.codegen.buffers import place_values
from llmc.codegen.cpu.measured_limits import MeasuredLimits
from llmc.codegen.kv_groups import BLOCK_TOKENS
from llmc.codegen.packing import stored_bytes
from llmc.codegen.roofline import Estimate, Machine, floor, memory_bytes
from llmc.codegen.work import Costing, Step, Storage, Work, kernels, slots
from llmc.compiler.roofline.lowering import Entries, Lowering
from llmc.compiler.targets.backend import Backend, Estimator
from llmc.ir.graph import Graph, Node
from llmc.ir.ops.attention import PagedAttention
from llmc.ir.ops.constant import Weight
from llmc.ir.ops.kernel import PackedLinear, Rows, Sample
from llmc.ir.ops.pointwise import Cast
from llmc.ir.ops.shape import Expand, Permute, Slice, View

CHUNK = 2048  # most tokens of a prefill step
_QUIET = (Cast, View, Permute, Expand, Slice)  # not worth naming in a table


@dataclass(frozen=True)
class Kernel:
    """`count` launches-of-one-shape of a step, in total: bytes, operations, seconds. None: not known."""

    op: str
    shape: str
    where: str
    count: int
    launches: int
    weight_bytes: int
    activation_bytes: int
    kv_bytes: int
    memory_bytes: int
    matrix_flops: int
    matrix_unit: str
    vector_flops: int
    floor_s: float | None
    bound: str | None
    expected_s: float | None
    note: str


@dataclass(frozen=True)
class Total:
    """Of a step or of several. `fraction`: floor / expected."""

    launches: int
    memory_bytes: int
    floor_s: float | None
    expected_s: float | None
    fraction: float | None
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True)
class Point:
    """`tpot`: a step of `batch` sequences with `length` tokens each in the cache. `ttft`: prefill of `batch` prompts of
    `length` tokens that arrive at once, to the last one's first token."""

    batch: int
    length: int
    fits: bool | None
    tpot: Total
    ttft: Total


@dataclass(frozen=True)
class Prediction:
    """Of a model on one target. `lowered_for`: the target whose graph was taken, where that is an engine's.
    `memory_bytes`, `largest_batch`: None where the target's memory is not known."""

    target: str
    product: str
    lowered_for: str | None
    bandwidth: float | None
    peaks: Mapping[str, float | None]
    memory_bytes: int | None
    weight_bytes: int
    kv_bytes_per_token: int
    arena_bytes_per_token: int
    arena_bytes_per_row: int
    largest_batch: int | None
    points: tuple[Point, ...]


@dataclass(frozen=True)
class _Costs:
    """What predictions ask of a target, with the models of its kernels by graph."""

    target: Backend
    machine: Machine | None
    estimators: dict[Graph, Estimator | None] = field(default_factory=dict)

    def estimate(self, graph: Graph, node: Node, work: Work, step: Step) -> Estimate | None:
        if graph not in self.estimators:
            self.estimators[graph] = self.target.estimator(graph)
        estimator = self.estimators[graph]
        return estimator(node, work, step) if estimator is not None else None


def predict(
    lowering: Lowering,
    target: Backend,
    batches: Sequence[int],
    length: int,
    chunk: int = CHUNK,
    limits: MeasuredLimits | None = None,
) -> Prediction:
    """`limits` count where they are of this target. IRError for a graph with ops that are no kernels."""
    model = _Costs(target, target.machine(limits))
    entries = lowering.entries
    memory = _Memory.of(entries, target.storage)
    largest = memory.largest_batch(target.usable_bytes, length, chunk)
    points = []
    for batch in batches:
        decode = _total(entries["decode"], [Step(batch, 1, length)], model)
        prefill = _total(entries["prefill"], list(prefill_steps(batch, length, chunk)), model)
        points.append(Point(batch, length, None if largest is None else batch <= largest, decode, prefill))
    peaks = vars(model.machine.peaks) if model.machine else {}
    return Prediction(
        target=target.name,
        product=target.product,
        lowered_for=lowering.built_for,
        bandwidth=model.machine.bandwidth if model.machine else None,
        peaks=dict(peaks),
        memory_bytes=target.memory_bytes,
        weight_bytes=memory.weights,
        kv_bytes_per_token=memory.kv_per_token,
        arena_bytes_per_token=memory.per_token,
        arena_bytes_per_row=memory.per_row,
        largest_batch=largest,
        points=tuple(points),
    )


def prefill_steps(batch: int, length: int, chunk: int) -> Iterator[Step]:
    """The steps that prefill `batch` prompts: long ones one after the other in chunks, short ones side by side."""
    if length >= chunk:
        for _ in range(batch):
            for past in range(0, length, chunk):
                yield Step(1, min(chunk, length - past), past)
        return
    for start in range(0, batch, chunk // length):
        yield Step(min(chunk // length, batch - start), length, 0)


@dataclass(frozen=True)
class _Memory:
    weights: int
    kv_per_token: int
    per_token: int
    per_row: int

    @classmethod
    def of(cls, entries: Entries, storage: Storage) -> _Memory:
        exprs = {n.op.expr: n.op.expr.type for g in entries.values() for n in g.nodes if isinstance(n.op, Weight)}
        arenas = [_arena(g, storage) for g in entries.values()]
        return cls(
            weights=sum(stored_bytes(type_) for type_ in exprs.values()),
            kv_per_token=sum(s.token_bytes(storage) for s in slots(entries["prefill"]).values()),
            per_token=max(a[0] for a in arenas),
            per_row=max(a[1] for a in arenas),
        )

    def largest_batch(self, usable: int | None, length: int, chunk: int) -> int | None:
        if usable is None:
            return None
        blocks = -(-length // BLOCK_TOKENS)
        each = self.kv_per_token * BLOCK_TOKENS * blocks + self.per_row
        return max(0, (usable - self.weights - self.per_token * chunk) // each)


def _arena(graph: Graph, storage: Storage) -> tuple[int, int]:
    """Bytes per token and per sampled row; decode samples every row."""
    memory = place_values(graph, storage.row_bytes).memory
    return memory.per_token, memory.per_row


def _total(graph: Graph, steps: Iterable[Step], model: _Costs) -> Total:
    """Equal steps and equal kernels together."""
    costing = Costing.of(graph, model.target.storage)
    counts: dict[Step, int] = {}
    for step in steps:
        counts[step] = counts.get(step, 0) + 1
    groups: dict[tuple[str, str, str], list[Kernel]] = {}
    for step, times in counts.items():
        for node in kernels(graph):
            kernel = _kernel(graph, node, costing.work(node, step), step, times, model)
            groups.setdefault((kernel.op, kernel.shape, kernel.where), []).append(kernel)
    joined = tuple(_join(group) for group in groups.values())
    floor_s, expected_s = _sum(k.floor_s for k in joined), _sum(k.expected_s for k in joined)
    return Total(
        launches=sum(k.launches for k in joined),
        memory_bytes=sum(k.memory_bytes for k in joined),
        floor_s=floor_s,
        expected_s=expected_s,
        fraction=floor_s / expected_s if floor_s is not None and expected_s else None,
        kernels=joined,
    )


def _kernel(graph: Graph, node: Node, work: Work, step: Step, times: int, model: _Costs) -> Kernel:
    least = floor(work, model.machine) if model.machine else None
    expected = model.estimate(graph, node, work, step)
    cache = model.machine.cache_bytes if model.machine else 0
    return Kernel(
        op=node.op.mnemonic(),
        shape=_shape(node),
        where=re.sub(r"\.\d+(?=\.|\s|$)", ".*", node.loc),
        count=times,
        launches=times * (expected.launches if expected else 1),
        weight_bytes=times * work.weights,
        activation_bytes=times * work.activations,
        kv_bytes=times * work.kv,
        memory_bytes=times * memory_bytes(work, cache),
        matrix_flops=times * work.matrix_flops,
        matrix_unit=work.matrix_unit.value if work.matrix_flops else "",
        vector_flops=times * work.vector_flops,
        floor_s=times * least.seconds if least else None,
        bound=least.bound.value if least else None,
        expected_s=times * expected.seconds if expected else None,
        note=expected.note if expected else "",
    )


def _join(group: list[Kernel]) -> Kernel:
    """Bound and note are those of the kernel that takes longest."""
    slowest = max(group, key=lambda k: k.expected_s or k.floor_s or 0)
    added = (
        "count", "launches", "weight_bytes", "activation_bytes", "kv_bytes", "memory_bytes", "matrix_flops",
        "vector_flops",
    )  # fmt: skip
    return Kernel(
        **{
            **vars(slowest),
            **{name: sum(getattr(k, name) for k in group) for name in added},
            "floor_s": _sum(k.floor_s for k in group),
            "expected_s": _sum(k.expected_s for k in group),
        }
    )


def _sum(values: Iterable[float | None]) -> float | None:
    """None where one is not known."""
    found = list(values)
    known = [v for v in found if v is not None]
    return sum(known) if len(known) == len(found) else None


def _shape(node: Node) -> str:
    match node.op:
        case PackedLinear() as op:
            n, k = node.inputs[1].tensor.static_shape()
            return f"{n} x {k}{', gated' if op.gated else ''}"
        case PagedAttention() as op:
            _, heads, dim = node.inputs[1].tensor.shape
            window = f", window {op.mask.window}" if op.mask.window is not None else ""
            return f"{heads}/{op.num_kv_heads} heads of {dim}{window}"
        case Sample():
            return f"of {node.inputs[0].tensor.shape[1]}"
        case Rows() as op:
            names = (n.op.mnemonic() for n in op.body.nodes if not isinstance(n.op, _QUIET))
            width = node.outputs[0].type
            return " + ".join(dict.fromkeys(names)) or f"copy of {width}"
    return ""
