"""Stop strings over a stream of text pieces.

Nothing that may be the beginning of a stop is let out too early.
"""

from collections.abc import Sequence


class StopMatcher:
    """Cuts the text before the stop string that is complete first, whichever tokens it is spread over."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, piece: str, armed: bool = True) -> str:
        """Text that may be shown. After a match, `matched` is set and nothing more comes out.

        Text fed while not `armed` passes unseen: a stop string must lie wholly after it.
        """
        if self.matched is not None:
            return ""
        if not armed or not self._stops:
            return piece
        text = self._held + piece
        hits = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if hits:
            # The stop that is complete first wins, as if the text came character by character: so the cut does
            # not depend on how tokens divide the text.
            _, at, self.matched = min(hits)
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back and turned out to be no stop."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
