"""Run-time values within the envelope an engine was built for: checked, defaulted, and turned into sizes."""

from dataclasses import dataclass, field

from llmc.runtime.artifact.bounds import plain
from llmc.runtime.artifact.kv_layout import KvLayout
from llmc.runtime.artifact.manifest import Manifest, TargetEntry
from llmc.runtime.errors import InvalidParameter, NotEnoughMemory
from llmc.runtime.kv.pool_sizes import size_pools
from llmc.runtime.step.arrays import StepLimits
from llmc.runtime.step.scheduling import SchedulingOptions

_MAX_KV_BYTES = 1 << 50


@dataclass(frozen=True)
class LoadOptions:
    """What a caller asks for; None means the default that `Engine.load` documents."""

    max_batch: int | None = None
    max_seq_len: int | None = None
    max_tokens: int | None = None
    max_rows: int | None = None
    threads: int | None = None
    kv_memory: int | None = None
    serial: bool = False
    prefix_cache: bool = True
    swap_memory: int | None = None
    scheduling: SchedulingOptions = field(default_factory=SchedulingOptions)


def plan_step(manifest: Manifest, target: TargetEntry, options: LoadOptions) -> StepLimits:
    """The largest step. Raises InvalidParameter for a value outside the envelope."""
    built = manifest.limits
    max_batch = within("max_batch", options.max_batch, built.max_batch, built.max_batch)
    max_seq_len = within("max_seq_len", options.max_seq_len, built.max_seq_len, built.max_seq_len)
    max_tokens = within("max_tokens", options.max_tokens, built.max_tokens, built.max_tokens)
    if max_batch > max_tokens:
        raise InvalidParameter(f"max_batch is {max_batch}, more than the {max_tokens} tokens of a step (max_tokens)")
    max_rows = within("max_rows", options.max_rows, min(max_batch, max_tokens), max_tokens)
    if max_rows < max_batch:
        raise InvalidParameter(f"max_rows is {max_rows}, but each of max_batch {max_batch} requests needs one")
    kv = target.kv
    return StepLimits(max_tokens, max_batch, max_rows, max_seq_len, kv.block_tokens, len(kv.groups))


def asked_kv_memory(kv_memory: int) -> int:
    """Bytes of KV pools that a caller asks for. Raises InvalidParameter."""
    return within("kv_memory", kv_memory, 0, _MAX_KV_BYTES)


def asked_swap_memory(swap_memory: int | None) -> int | None:
    """Bytes of host memory for blocks of those who are preempted, 0 for none. Raises InvalidParameter."""
    return None if swap_memory is None else within("swap_memory", swap_memory, 0, _MAX_KV_BYTES, least=0)


def num_blocks(kv: KvLayout, step: StepLimits, budget: int, source: str) -> tuple[int, ...]:
    """Blocks of each group's pool, of at most `budget` bytes together, no more than a full batch can use.

    Raises NotEnoughMemory, naming the budget's `source`, if not one of each fits.
    """
    blocks = size_pools(kv, step, budget)
    if blocks is None:
        least = " + ".join(str(group.block_bytes) for group in kv.groups)
        raise NotEnoughMemory(f"{source} is {budget} bytes, one KV block of each group needs {least}")
    return blocks


def within(name: str, value: int | None, default: int, largest: int, least: int = 1) -> int:
    value = plain(value)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= largest:
        raise InvalidParameter(f"{name} must be in {least}..{largest}, got {value!r}")
    return value
