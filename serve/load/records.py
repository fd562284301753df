"""What was measured of each request, wherever it ran."""

from __future__ import annotations

from dataclasses import dataclass

from llmc.serve.load.plan import Planned


@dataclass(frozen=True)
class Record:
    """One request's story, in seconds after the beginning of its run.

    `begin`: when it arrived, by the plan, or else when it was sent: what a late client adds counts. `outputs`: when
    outputs came, each of one token or of several that a server joined. `end`: when the answer had ended, perhaps after
    its last output. `cached_tokens`: of the prompt, from a prefix cache, where the server says it. `counted`: the
    server counted the tokens; else each output was taken for one.
    """

    planned: Planned
    begin: float
    sent: float
    outputs: tuple[float, ...]
    end: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    counted: bool = True
    error: str | None = None

    @property
    def ttft(self) -> float:
        return self.outputs[0] - self.begin

    @property
    def e2e(self) -> float:
        return self.end - self.begin

    @property
    def tpot(self) -> float | None:
        """(E2E - TTFT) / (N - 1); None of an answer of one token."""
        return (self.e2e - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass(frozen=True)
class Gauges:
    """What was seen of the server during a run; None: it does not tell.

    `steps`: how many its engine ran. `kv_peak`: share of the KV cache in use, at most. `memory_bytes`: resident, at
    most.
    """

    kv_peak: float | None = None
    memory_bytes: int | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Run:
    """One repetition of a workload. `seconds`: from its beginning to the last output.

    `client_cpu`: CPU seconds of the process that sent and received, where that is not the one that computes.
    """

    records: tuple[Record, ...]
    seconds: float
    client_cpu: float | None = None
    gauges: Gauges = Gauges()

    @property
    def answered(self) -> tuple[Record, ...]:
        return tuple(record for record in self.records if record.error is None)
