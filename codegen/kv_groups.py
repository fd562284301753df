"""The KV cache of a graph: what each slot holds, and which slots keep the same positions and so share block tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import llmc.runtime.artifact.kv_layout as kv_layout
from llmc.ir.graph import Graph, Op
from llmc.ir.ops.attention import KvWrite, Mask, PagedAttention
from llmc.ir.ops.kernel import Rows
from llmc.ir.types import DType

BLOCK_TOKENS = 32  # positions of a cache block, on every target (templates: BLOCK, kKvBlock)
LINE = 64  # bytes; slots and blocks are aligned to it


@dataclass(frozen=True)
class CacheSlot:
    """A slot's shape, its first reader, and what its readers need: the last `window` positions, or all (None)."""

    layer: str
    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: DType
    window: int | None


@dataclass(frozen=True)
class Place:
    """Where a slot lies: `offset` bytes into each block of a group."""

    slot: CacheSlot
    group: int
    offset: int


@dataclass(frozen=True)
class Group:
    """Slots that keep the same positions, in order of their places in a block of `block_bytes`."""

    window: int | None
    block_bytes: int
    slots: tuple[CacheSlot, ...]


@dataclass(frozen=True)
class KvGroups:
    """The groups of a graph and the place of each of its slots, by the slot's number."""

    groups: tuple[Group, ...]
    places: tuple[Place, ...]

    @property
    def layout(self) -> kv_layout.KvLayout:
        """As the manifest says it."""
        groups = []
        for group in self.groups:
            slots = (kv_layout.KvSlot(s.layer, s.kv_heads, s.head_dim, s.value_dim, s.dtype.value) for s in group.slots)
            per_token = group.block_bytes // BLOCK_TOKENS
            groups.append(kv_layout.KvGroup(group.window, group.block_bytes, per_token, tuple(slots)))
        return kv_layout.KvLayout(BLOCK_TOKENS, tuple(groups))


def group_slots(slots: tuple[CacheSlot, ...], slot_bytes: Callable[[CacheSlot], int]) -> KvGroups:
    """`slot_bytes`: of a slot in a block of BLOCK_TOKENS positions. Slots without a window first, then the widest."""
    windows = sorted({slot.window for slot in slots}, key=lambda w: (w is not None, -(w or 0)))
    numbers = {window: number for number, window in enumerate(windows)}
    ends: dict[int, int] = defaultdict(int)
    places = []
    for slot in slots:
        group = numbers[slot.window]
        places.append(Place(slot, group, ends[group]))
        ends[group] += -(-slot_bytes(slot) // LINE) * LINE
    members = {window: tuple(s for s in slots if s.window == window) for window in windows}
    groups = tuple(Group(window, ends[numbers[window]], members[window]) for window in windows)
    return KvGroups(groups, tuple(places))


def cache_slots(graph: Graph) -> tuple[CacheSlot, ...]:
    """The slots of a kernel-level graph, by number. Layers may share one: it keeps what its widest reader needs."""
    readers: dict[int, list[tuple[PagedAttention, str]]] = defaultdict(list)
    writes = {}
    for node in graph.nodes:
        if isinstance(node.op, PagedAttention):
            readers[node.op.slot].append((node.op, node.loc))
        for inner in node.op.body.nodes if isinstance(node.op, Rows) else ():
            if isinstance(inner.op, KvWrite):
                writes[inner.op.slot] = (inner.op, inner.inputs[1].tensor, inner.inputs[2].tensor)
    slots = []
    for number in range(len(writes)):
        write, k, v = writes[number]
        reaches = [reach(op.mask) for op, _ in readers[number]]
        known = [one for one in reaches if one is not None]
        window = max(known) if len(known) == len(reaches) else None
        (_, heads, head_dim), value_dim = k.shape, v.shape[2]
        assert isinstance(heads, int) and isinstance(head_dim, int) and isinstance(value_dim, int)
        slots.append(CacheSlot(readers[number][0][1], heads, head_dim, value_dim, write.dtype, window))
    return tuple(slots)


def slots_of(op: Op) -> tuple[int, ...]:
    """The slots that a kernel works on: those that a rows body writes, in order, or the one that attention reads."""
    if isinstance(op, PagedAttention):
        return (op.slot,)
    return tuple(n.op.slot for n in op.body.nodes if isinstance(n.op, KvWrite)) if isinstance(op, Rows) else ()


def reach(mask: Mask) -> int | None:
    """How many positions, its own the last, a token can see; None: all. A chunk is never longer than its length."""
    return min((limit for limit in (mask.window, mask.chunk) if limit is not None), default=None)
