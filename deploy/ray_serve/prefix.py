"""Which replica has seen the beginning of a prompt: what the router knows, without Ray.

A prompt's text is cut into pieces, and each piece's key is a hash of all that comes before its end, as the engine's
prefix cache does with blocks of tokens. Pieces need not match blocks: a replica that has seen the text has the blocks.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

PIECE_CHARS = 256  # some 64 tokens; the tail of a prompt, shorter than that, is of no use to anyone else
MAX_PIECES = 256  # of one prompt
Keys = tuple[bytes, ...]


def prefix_keys(body: bytes) -> Keys:
    """Of a request's body, the longest prefix last; none of one that is not understood, which the server refuses."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(request, dict):
        return ()
    key = _digest(json.dumps([request.get(name) for name in ("model", "cache_salt", "tools")]).encode())
    keys = []
    for piece in _pieces(_text(request)):
        keys.append(key := _digest(key + piece.encode("utf-8", "surrogatepass")))
    return tuple(keys)


def _text(request: Mapping[str, Any]) -> str:
    """What the prompt is made of, in the prompt's order."""
    for name in ("messages", "prompt", "input"):
        if (found := request.get(name)) is not None:
            parts = found if isinstance(found, list) else [found]
            return "\n".join(json.dumps(part) for part in [request.get("instructions"), *parts])
    return ""


def _pieces(text: str) -> Generator[str]:
    for end in range(PIECE_CHARS, min(len(text), MAX_PIECES * PIECE_CHARS) + 1, PIECE_CHARS):
        yield text[end - PIECE_CHARS : end]


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]


class PrefixTable:
    """The replica that each prefix was last sent to; the prefixes that were asked for longest ago are forgotten."""

    def __init__(self, max_keys: int = 200_000) -> None:
        self._max_keys = max_keys
        self._replicas: OrderedDict[bytes, str] = OrderedDict()

    def find(self, keys: Sequence[bytes], replicas: Collection[str]) -> str | None:
        """Of these replicas, the one that has seen most of the prompt."""
        return next((r for key in reversed(keys) if (r := self._replicas.get(key)) in replicas), None)

    def sent(self, keys: Sequence[bytes], replica: str) -> None:
        for key in reversed(keys):  # a prefix is forgotten after what it is a prefix of
            self._replicas[key] = replica
            self._replicas.move_to_end(key)
        while len(self._replicas) > self._max_keys:
            self._replicas.popitem(last=False)


def choose(
    table: PrefixTable, keys: Sequence[bytes], loads: Mapping[str, int], slack: int
) -> tuple[str | None, list[str]]:
    """The replica to ask first, if one has seen the prompt and is not busier than the idlest by more than `slack`
    requests; and all the others, the idlest first."""
    found = table.find(keys, loads.keys())
    if found is not None and loads[found] - min(loads.values()) > slack:
        found = None
    return found, sorted((replica for replica in loads if replica != found), key=lambda replica: loads[replica])
