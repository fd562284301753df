"""Run-time values within the envelope an engine was built for: checked, defaulted, and turned into sizes."""

from dataclasses import dataclass

from llmc.runtime.errors import InvalidParameter, NotEnoughMemory
from llmc.runtime.kv_layout import KvLayout
from llmc.runtime.kv_pools import size_pools
from llmc.runtime.manifest import Manifest
from llmc.runtime.memory import available_bytes, usable_cores
from llmc.runtime.prepare import StepLimits

_MAX_THREADS = 1024
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


@dataclass(frozen=True)
class LimitPlan:
    """Sizes of the device to create. `num_blocks`: of every KV group's pool."""

    step: StepLimits
    num_blocks: tuple[int, ...]
    threads: int


def plan_limits(manifest: Manifest, options: LoadOptions) -> LimitPlan:
    """Raises InvalidParameter for a value outside the envelope, NotEnoughMemory if no KV block fits."""
    built = manifest.limits
    max_batch = _within("max_batch", options.max_batch, built.max_batch, built.max_batch)
    max_seq_len = _within("max_seq_len", options.max_seq_len, built.max_seq_len, built.max_seq_len)
    max_tokens = _within("max_tokens", options.max_tokens, built.max_tokens, built.max_tokens)
    if max_batch > max_tokens:
        raise InvalidParameter(f"max_batch is {max_batch}, more than the {max_tokens} tokens of a step (max_tokens)")
    max_rows = _within("max_rows", options.max_rows, min(max_batch, max_tokens), max_tokens)
    if max_rows < max_batch:
        raise InvalidParameter(f"max_rows is {max_rows}, but each of max_batch {max_batch} requests needs one")
    kv = manifest.kv
    step = StepLimits(max_tokens, max_batch, max_rows, max_seq_len, kv.block_tokens, len(kv.groups))
    threads = _within("threads", options.threads, usable_cores(), _MAX_THREADS)
    return LimitPlan(step, _num_blocks(kv, step, options.kv_memory), threads)


def _num_blocks(kv: KvLayout, step: StepLimits, kv_memory: int | None) -> tuple[int, ...]:
    if kv_memory is None:
        budget, source = available_bytes() // 2, "half of the free memory"
    else:
        budget, source = _within("kv_memory", kv_memory, 0, _MAX_KV_BYTES), "kv_memory"
    blocks = size_pools(kv, step, budget)
    if blocks is None:
        least = " + ".join(str(group.block_bytes) for group in kv.groups)
        raise NotEnoughMemory(f"{source} is {budget} bytes, one KV block of each group needs {least}")
    return blocks


def _within(name: str, value: int | None, default: int, largest: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise InvalidParameter(f"{name} must be in 1..{largest}, got {value!r}")
    return value
