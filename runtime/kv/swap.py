"""Blocks of preempted sequences in host memory, until they run again: bookkeeping, the device copies."""

from dataclasses import dataclass
from enum import Enum

from llmc.runtime.kv.prefix import PrefixChain
from llmc.runtime.kv.table import BlockTable


class CopyKind(Enum):
    """WITHIN a pool, OUT of it to a slot of host memory, IN from there."""

    WITHIN = "within"
    OUT = "out"
    IN = "in"


@dataclass(frozen=True)
class BlockCopy:
    """The content of a block of a group's pool, or of a slot, to be copied to another."""

    group: int
    source: int
    target: int
    kind: CopyKind = CopyKind.WITHIN


@dataclass(frozen=True)
class SwapSpace:
    """A device's slots for blocks in host memory, by group, and what it takes to bring a block there or back."""

    num_slots: tuple[int, ...]
    slot_bytes: tuple[int, ...]
    seconds_per_byte: float


@dataclass(frozen=True)
class Kept:
    """What is in host memory of a sequence of which `computed` positions were computed: by group, index -> slot."""

    computed: int
    slots: tuple[dict[int, int], ...]


class SwapStore:
    """Which slots hold which blocks of whom. A slot that is given back may be written by any later copy."""

    def __init__(self, space: SwapSpace) -> None:
        self.space = space
        self.free = [list(range(count - 1, -1, -1)) for count in space.num_slots]
        self.kept: dict[PrefixChain, Kept] = {}

    def keep(self, table: BlockTable, wanted: list[dict[int, int]], recompute_seconds: float) -> list[BlockCopy]:
        """Copies of the `wanted` blocks (by group, index -> block) of a table that is about to be freed; none if to
        compute them again is cheaper than to copy them there and back, or if there are too few slots."""
        sizes = zip(wanted, self.space.slot_bytes, strict=True)
        seconds = 2 * self.space.seconds_per_byte * sum(len(blocks) * size for blocks, size in sizes)
        if seconds >= recompute_seconds or any(map(_more, wanted, self.free)) or not any(wanted):
            return []
        slots = tuple({index: free.pop() for index in blocks} for blocks, free in zip(wanted, self.free, strict=True))
        assert table._prefix is not None and table._prefix not in self.kept
        self.kept[table._prefix] = Kept(table._computed, slots)
        return [
            BlockCopy(group, block, slots[group][index], CopyKind.OUT)
            for group, blocks in enumerate(wanted)
            for index, block in blocks.items()
        ]

    def drop(self, prefix: PrefixChain) -> None:
        """Nobody needs what is kept of this sequence, if anything is."""
        kept = self.kept.pop(prefix, None)
        if kept is not None:
            for free, slots in zip(self.free, kept.slots, strict=True):
                free.extend(slots.values())

    def check_integrity(self) -> None:
        """Raises AssertionError unless every slot is free or kept for one sequence."""
        for group, count in enumerate(self.space.num_slots):
            kept = [slot for one in self.kept.values() for slot in one.slots[group].values()]
            assert sorted([*kept, *self.free[group]]) == list(range(count)), "a slot is lost or kept twice"


def _more(blocks: dict[int, int], free: list[int]) -> bool:
    return len(blocks) > len(free)
