"""Keys of what a sequence's blocks hold: a chain of SHA-256 over its ids, begun by all else that keys and values depend
on."""

import hashlib
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.errors import InvalidParameter

MAX_SALT_CHARS = 1024


class History(Protocol):
    """Ids of a sequence as far as they are known; it only grows, while anything looks at it."""

    def __len__(self) -> int: ...

    @property
    def ids(self) -> NDArray[np.int32]: ...


def root_of(engine: bytes, adapter: str, salt: str) -> bytes:
    """What a chain begins with: sequences of other roots share nothing, whatever their ids.

    `engine` says which weights and kernels compute the keys and values, `salt` whose they are.
    """
    parts = [engine, adapter.encode("utf-8", "surrogatepass"), salt.encode("utf-8", "surrogatepass")]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()


def checked_salt(salt: str) -> str:
    """Raises InvalidParameter."""
    if not isinstance(salt, str) or len(salt) > MAX_SALT_CHARS:
        raise InvalidParameter(f"salt must be a string of at most {MAX_SALT_CHARS} characters, got {salt!r:.60}")
    return salt


class PrefixChain:
    """Keys of a sequence's whole blocks; one chain for each request.

    Key i names the ids of blocks 0..i and the root. Each is hashed once, when it is first asked for.
    """

    __slots__ = ("_keys", "history", "root")

    def __init__(self, history: History, root: bytes) -> None:
        self.history = history
        self.root = root
        self._keys: list[bytes] = []

    def key(self, index: int, block_tokens: int) -> bytes:
        """Of block `index`, whose ids must be known; -1 is the root. Always asked for the same size of blocks."""
        if index < 0:
            return self.root
        keys = self._keys
        while len(keys) <= index:
            ids = self.block(len(keys), block_tokens)
            assert len(ids) == block_tokens, "a key of a block whose ids are not all known"
            keys.append(key_of(keys[-1] if keys else self.root, ids))
        return keys[index]

    def block(self, index: int, block_tokens: int) -> NDArray[np.int32]:
        """Ids of block `index`, as far as they are known."""
        return self.history.ids[index * block_tokens : (index + 1) * block_tokens]


def key_of(parent: bytes, ids: NDArray[np.int32]) -> bytes:
    """The key of a whole block behind the one whose key is `parent`."""
    return hashlib.sha256(parent + ids.tobytes()).digest()


def common_length(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """How many ids two sequences begin with alike."""
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    first = int(differ.argmax()) if length else 0
    return first if length and differ[first] else length
