"""One step's work: which tokens of which requests."""

from dataclasses import dataclass

from llmc.runtime.kv.blocks import BlockTable
from llmc.runtime.loop.request import Request


@dataclass(slots=True)  # not frozen: a step makes one for each request, and that would take three times as long
class Chunk:
    """Tokens `start`..`start + count - 1` of a request; each of its last `samples` chooses what follows it."""

    request: Request
    blocks: BlockTable
    start: int
    count: int
    samples: int


@dataclass(frozen=True)
class Batch:
    """One step's work, in the order in which the device sees it. At most one chunk per request."""

    chunks: tuple[Chunk, ...]

    @property
    def decode_only(self) -> bool:
        """Whether every sequence has one token, which is sampled. The last token of a step may be a prompt's middle."""
        return all(chunk.count == chunk.samples == 1 for chunk in self.chunks)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.count for chunk in self.chunks)
