"""How long a KV group keeps a sequence's positions, counted in blocks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Retention:
    """A token at position p reads positions p - window + 1 .. p (`window` None: 0 .. p), so that blocks wholly behind
    the window of every token still to be computed can be given back.

    A step computes at most `step_tokens` tokens of a sequence. Where a block is a `state`, it holds what is left after
    the last of its positions that was computed, and nothing of those before.
    """

    window: int | None
    block_tokens: int
    step_tokens: int
    state: bool = False

    def __post_init__(self) -> None:
        least = min(self.block_tokens, self.step_tokens, 1 if self.window is None else self.window)
        if least < 1:
            raise ValueError(f"windows, blocks and steps have at least one token, got {self}")

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that positions 0..num_tokens-1 lie in."""
        return -(-num_tokens // self.block_tokens)

    def first_kept(self, computed: int) -> int:
        """Index of the first block that a token at position `computed` or later reads."""
        if self.window is None:
            return 0
        return max(0, computed - self.window + 1) // self.block_tokens

    def next_release(self, computed: int) -> int:
        """The least number of computed positions, above `computed`, at which `first_kept` is another; without a window
        there is none."""
        assert self.window is not None
        return (self.first_kept(computed) + 1) * self.block_tokens + self.window - 1

    def most_blocks(self, computed: int, end: int) -> int:
        """The most blocks held at once while positions computed..end-1 are computed, whatever the steps."""
        whole = self.blocks_for(end)
        if self.window is None:
            return whole
        # A step touches its own positions and window - 1 before them; a run of n positions that starts anywhere lies
        # in at most ceil((n - 1) / block_tokens) + 1 blocks.
        run = self.window - 1 + max(1, min(self.step_tokens, end - computed))
        return min(whole, self.blocks_for(run - 1) + 1)

    def longest(self, num_blocks: int, limit: int) -> int:
        """The longest sequence, up to `limit`, that can always be computed with `num_blocks` blocks."""
        if self.most_blocks(0, limit) <= num_blocks:
            return limit
        return num_blocks * self.block_tokens
