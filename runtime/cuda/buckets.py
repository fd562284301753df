"""Sizes of step for which graphs exist. A step runs in the smallest bucket that holds it; blocks beyond its counts
return at once, so that a bucket costs launches and no work."""

from bisect import bisect_left

from llmc.runtime.cuda.plan import Sizes
from llmc.runtime.step.arrays import StepLimits

_SMALL = (1, 2, 4, 8, 16, 24, 32)
_DECODE_STEP = 16
_FIRST_PREFILL = 16


def decode_buckets(max_batch: int) -> tuple[int, ...]:
    """Sequences: 1, 2, 4, 8, 16, 24, 32, then by 16; the last is max_batch."""
    sizes = [*_SMALL, *range(_SMALL[-1] + _DECODE_STEP, max_batch, _DECODE_STEP)]
    return (*(n for n in sizes if n < max_batch), max_batch)


def prefill_buckets(max_tokens: int) -> tuple[int, ...]:
    """Tokens: doubling from 16; the last is max_tokens."""
    sizes = []
    size = _FIRST_PREFILL
    while size < max_tokens:
        sizes.append(size)
        size *= 2
    return (*sizes, max_tokens)


def smallest(buckets: tuple[int, ...], count: int) -> int:
    """The smallest bucket that holds `count`; the count must not exceed the last."""
    return buckets[bisect_left(buckets, count)]


def decode_sizes(bucket: int, limits: StepLimits) -> Sizes:
    """Every sequence has one token, which is sampled."""
    return Sizes(bucket, bucket, bucket, limits.max_seq_len)


def prefill_sizes(bucket: int, samples: bool, limits: StepLimits) -> Sizes:
    """Any mix: as many sequences and, if it `samples` at all, sampled rows as the tokens and the limits allow.

    Most chunks of a long prompt sample nothing, and do without the head.
    """
    return Sizes(
        bucket, min(bucket, limits.max_rows) if samples else 0, min(bucket, limits.max_seqs), limits.max_seq_len
    )
