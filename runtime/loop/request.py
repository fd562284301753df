"""One request as the scheduler sees it: its tokens, how many of them are in the KV cache, and its state."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from llmc.runtime.kv.blocks import BlockTable
from llmc.runtime.kv.prefix import PrefixChain
from llmc.runtime.step.row_sampling import RowSampling
from llmc.runtime.step.scheduling import RANK, LatencyClass


class RequestState(Enum):
    """WAITING for blocks (new or preempted), RUNNING (holds blocks), FINISHED (holds none)."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why an answer ended: an end token or stop string, the length limit, the caller, or an error."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class TokenHistory:
    """The ids of a sequence so far, `size` of them, in one int32 array that the device can read, prompt first."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.size = len(prompt)
        self.last = int(prompt[-1]) if self.size else -1
        self._reserve(np.array(prompt, dtype=np.int32))

    def __len__(self) -> int:
        return self.size

    @property
    def ids(self) -> NDArray[np.int32]:
        """View [len]; valid until the next append."""
        return self._ids[: self.size]

    def append(self, token: int) -> None:
        if self.size == len(self._ids):
            self._reserve(self._ids)
        self._ids[self.size] = self.last = token
        self.size += 1

    def _reserve(self, ids: NDArray[np.int32]) -> None:
        self._ids = np.concatenate([ids, np.empty(max(64, self.size), dtype=np.int32)])
        # Where the array lies, for the device; valid until the next append.
        self.address = int(self._ids.ctypes.data)


@dataclass(frozen=True)
class Ends:
    """What ends an answer, as far as its ids say. Stop strings are for whoever makes text of them."""

    stop_ids: Set[int] = frozenset()
    min_tokens: int = 0
    max_tokens: int = 2**31 - 1

    def reason(self, token: int, count: int) -> FinishReason | None:
        """Why an answer ends with `token`, the `count`-th of its output; None if it goes on."""
        if token in self.stop_ids and count >= self.min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if count >= self.max_tokens else None


@dataclass(eq=False)
class Request:
    """Mutable state of one sequence. The scheduler owns what follows `priority`.

    `arrival` numbers requests in the order in which they came: no two that are queued have the same.
    """

    arrival: int
    tokens: TokenHistory
    prompt_len: int
    sampling: RowSampling
    ends: Ends = Ends()
    num_logprobs: int | None = None  # None: no log-probabilities are wanted
    prefix: PrefixChain | None = None  # None: its blocks are nobody else's
    latency: LatencyClass = LatencyClass.STANDARD
    priority: int = 0  # within its class, higher first
    token_first: bool = False  # no step of it may begin before it is decided what its last token means
    state: RequestState = RequestState.WAITING
    num_computed: int = 0
    num_preemptions: int = 0
    num_cached: int = 0  # prompt tokens that the prefix cache had when it was first admitted
    blocks: BlockTable | None = None
    finish_reason: FinishReason | None = None
    submitted: float = 0.0
    first_token: float | None = None  # when it was computed
    due: float = 0.0  # when its prompt must be begun, or gone on with, to meet its target
    rank: int = field(init=False)  # of its class: smaller is more urgent

    def __post_init__(self) -> None:
        self.rank = RANK[self.latency]

    @property
    def num_output(self) -> int:
        return self.tokens.size - self.prompt_len

    @property
    def num_pending(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return self.tokens.size - self.num_computed
