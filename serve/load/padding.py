"""What static batching would compute for the same answers."""

from __future__ import annotations

from collections.abc import Sequence


def padded_tokens(lengths: Sequence[tuple[int, int]], batch: int) -> int:
    """Tokens of batches of `batch` requests in their order, (prompt, output) each, padded to the longest of a batch.

    Every prompt is as long as the longest one, and every sequence is computed until the last has ended.
    """
    batches = [lengths[start : start + batch] for start in range(0, len(lengths), batch)]
    return sum(len(each) * (max(p for p, _ in each) + max(o for _, o in each)) for each in batches)
