"""How many KV blocks each group's pool gets of the memory there is."""

from bisect import bisect_right

from llmc.runtime.artifact.kv_layout import KvLayout
from llmc.runtime.kv.retention import Retention
from llmc.runtime.step.arrays import StepLimits


def retentions(kv: KvLayout, step_tokens: int) -> tuple[Retention, ...]:
    """Of every group, where a step computes at most `step_tokens` tokens."""
    return tuple(
        Retention(group.window, kv.block_tokens, step_tokens, state=group.bytes_per_token == 0) for group in kv.groups
    )


def sequence_bytes(kv: KvLayout, step_tokens: int, length: int) -> int:
    """The most bytes of all pools that a sequence of `length` tokens holds at once."""
    pairs = zip(retentions(kv, step_tokens), kv.groups, strict=True)
    return sum(retention.most_blocks(0, length) * group.block_bytes for retention, group in pairs)


def size_pools(kv: KvLayout, limits: StepLimits, budget: int) -> tuple[int, ...] | None:
    """Blocks of every group's pool within `budget` bytes; None if one block of each is already more.

    If one sequence of max_seq_len fits, it is sure of its blocks. Then all (others) that may run at once get to be as
    long as they can, all alike; what is left goes to the first groups that can use it.
    """
    groups = retentions(kv, limits.max_tokens)
    lengths = range(1, limits.max_seq_len + 1)

    def longest(budget: int, num_seqs: int) -> int:
        return bisect_right(lengths, budget, key=lambda n: num_seqs * sequence_bytes(kv, limits.max_tokens, n))

    if not kv.groups:
        return ()
    if not longest(budget, 1):
        return None
    # (sequences, length of each): where not all that may run at once can have a block, as many as can
    one = sequence_bytes(kv, limits.max_tokens, limits.max_seq_len)
    sure = (1, limits.max_seq_len) if one <= budget else (0, 0)
    num_seqs = min(limits.max_seqs - sure[0], (budget - sure[0] * one) // sequence_bytes(kv, limits.max_tokens, 1))
    alike = (num_seqs, longest(budget - sure[0] * one, num_seqs))
    counts = [sum(n * group.most_blocks(0, length) for n, length in (sure, alike)) for group in groups]
    left = budget - sum(count * group.block_bytes for count, group in zip(counts, kv.groups, strict=True))
    for index, group in enumerate(groups):
        useful = limits.max_seqs * group.most_blocks(0, limits.max_seq_len)
        more = min(useful - counts[index], left // kv.groups[index].block_bytes)
        counts[index] += more
        left -= more * kv.groups[index].block_bytes
    return tuple(counts)
