"""What a long command is doing, told while it does it."""

from __future__ import annotations

BYTES = "bytes"


class Progress:
    """Told of stages, one after the other, and how far the present one is. This one shows it to nobody."""

    def stage(self, text: str) -> None:
        """A new stage begins; the one before has ended."""

    def amount(self, done: int, total: int, unit: str) -> None:
        """So much of the stage is done, in BYTES or in things that the unit names in the plural."""
