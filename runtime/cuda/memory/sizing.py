"""How an engine divides the device's memory, and whether it fits: known before anything is copied."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmc.runtime.artifact.kv_layout import KvLayout
from llmc.runtime.errors import NotEnoughMemory
from llmc.runtime.step.arrays import StepLimits
from llmc.runtime.step.limits import asked_kv_memory, num_blocks

_RESERVE_SHARE = 64  # of the device's memory, for graphs, the driver's own needs and other processes' small changes
_MOST_RESERVE = 1 << 30


@dataclass(frozen=True)
class Needs:
    """Bytes of everything but the KV pools and the arrays of steps, which are allocated by then."""

    weights: int
    arena: int
    scratch: int

    @property
    def total(self) -> int:
        return self.weights + self.arena + self.scratch


def reserve_bytes(total: int) -> int:
    """Bytes that are left alone on a device with `total`."""
    return min(total // _RESERVE_SHARE, _MOST_RESERVE)


def fit_pools(
    folder: Path, kv: KvLayout, step: StepLimits, needs: Needs, memory: tuple[int, int], kv_memory: int | None
) -> tuple[int, ...]:
    """Blocks of each KV group's pool: what `kv_memory` asks for, else all that is free; no more than a full batch uses.

    `memory`: bytes free and in all. Raises NotEnoughMemory with the bytes needed and free, InvalidParameter.
    """
    free, total = memory
    left = free - reserve_bytes(total) - needs.total
    least = _least_bytes(kv) if kv_memory is None else asked_kv_memory(kv_memory)
    if least > left:
        needed = needs.total + least + reserve_bytes(total)
        raise NotEnoughMemory(
            f"{folder}: needs {needed} bytes of device memory ({needs.weights} of weights, "
            f"{needs.arena + needs.scratch} of scratch, {least} of KV at least, {reserve_bytes(total)} in reserve), "
            f"{free} of {total} are free; lower max_batch, max_tokens, max_seq_len or kv_memory"
        )
    source = "the device's free memory" if kv_memory is None else "kv_memory"
    return num_blocks(kv, step, left if kv_memory is None else least, source)


def no_room_for_steps(folder: Path, kv: KvLayout, needs: Needs, error: NotEnoughMemory) -> NotEnoughMemory:
    """For a device that refuses even the arrays of steps, with `error`: what everything else needs."""
    least = _least_bytes(kv)
    return NotEnoughMemory(
        f"{folder}: needs {needs.total + least} bytes of device memory ({needs.weights} of weights, "
        f"{needs.arena + needs.scratch} of scratch, {least} of KV at least) beside the arrays of steps: {error}"
    )


def _least_bytes(kv: KvLayout) -> int:
    """Of pools with one block each."""
    return sum(pool_bytes(kv, [1] * len(kv.groups)))


def pool_bytes(kv: KvLayout, blocks: Sequence[int]) -> tuple[int, ...]:
    """Bytes of every KV group's pool."""
    return tuple(count * group.block_bytes for count, group in zip(blocks, kv.groups, strict=True))
