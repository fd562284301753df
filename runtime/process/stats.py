"""A snapshot of an engine at work, as plain values: what /metrics counts and what the page draws."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StepStats:
    """The last step. `kind` is prefill, decode, score or idle; `rows` are those that chose a token."""

    kind: str = "idle"
    tokens: int = 0
    rows: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class PoolStats:
    """Blocks of one KV group: `held` by requests, `cached` for prefixes but free to take, `free` of everything."""

    total: int
    free: int
    cached: int
    held: int
    map: bytes = b""  # a byte for each block: 0 free, 1 cached, 2 held by one request, 3 shared by several


@dataclass(frozen=True)
class CacheStats:
    """The prefix cache since the engine was loaded; `hits` and `misses` count requests' blocks."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    tokens_saved: int = 0


@dataclass(frozen=True)
class RequestStats:
    """One request (a sample of it) that is not finished. `blocks`: of every KV group, those it holds."""

    id: str
    sample: int
    state: str  # waiting or running
    latency: str  # its class: interactive, standard, batch
    prompt_len: int
    output_len: int
    computed: int
    blocks: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Counters:
    """Since the engine was loaded. At idle, started = the sum of finished + cancelled + failed."""

    started: int = 0
    finished: Mapping[str, int] = field(default_factory=dict)  # by reason: stop, length
    cancelled: int = 0
    failed: int = 0
    preempted: int = 0
    refused: int = 0  # before they were queued
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    answered: Mapping[str, int] = field(default_factory=dict)  # by latency class: requests that ended by themselves
    goodput: Mapping[str, int] = field(default_factory=dict)  # by latency class: those of them within their targets


@dataclass(frozen=True)
class EngineStats:
    """As the engine's process has last told: several times a second while it works, and when it comes to rest."""

    running: int = 0
    waiting: int = 0
    step: StepStats = StepStats()
    kv: tuple[PoolStats, ...] = ()
    cache: CacheStats = CacheStats()
    requests: tuple[RequestStats, ...] = ()
    counters: Counters = field(default_factory=Counters)
