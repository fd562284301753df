"""The KV cache of an engine as its manifest describes it: groups of attention layers that keep the same positions.

Every group has a pool of blocks and, for every sequence, a block table of its own.
"""

from dataclasses import dataclass

from llmc.runtime.artifact.bounds import at_least


@dataclass(frozen=True)
class KvSlot:
    """Keys and values of one attention layer, or of several that share them: `layer` is the first that reads them."""

    layer: str
    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: str

    def __post_init__(self) -> None:
        at_least(1, kv_heads=self.kv_heads, head_dim=self.head_dim, value_dim=self.value_dim)


@dataclass(frozen=True)
class KvGroup:
    """Slots that keep the same positions.

    A token at position p reads positions p - window + 1 .. p of them and none before; `window` None: all of 0 .. p.
    Block b of the group's pool starts at `b * block_bytes` and holds a block of positions of every slot, of
    `bytes_per_token` each; none where a block is no longer for holding more positions.
    """

    window: int | None
    block_bytes: int
    bytes_per_token: int
    slots: tuple[KvSlot, ...]

    def __post_init__(self) -> None:
        at_least(1, window=self.window, block_bytes=self.block_bytes)
        at_least(0, bytes_per_token=self.bytes_per_token)


@dataclass(frozen=True)
class KvLayout:
    """The groups, as the kernels number them. A block of any group holds `block_tokens` positions."""

    block_tokens: int
    groups: tuple[KvGroup, ...]

    def __post_init__(self) -> None:
        at_least(1, block_tokens=self.block_tokens)

    @property
    def slots(self) -> tuple[KvSlot, ...]:
        """Slots of all groups."""
        return tuple(slot for group in self.groups for slot in group.slots)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one position in all groups."""
        return sum(group.bytes_per_token for group in self.groups)
