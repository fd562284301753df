"""What a race found: medians of every contender in every workload, and our engines beside the best of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench.cpu.llamacpp import ModelWork
from bench.cpu.quality import Quality
from bench.cpu.samples import Sample, Spread, rates, ratios
from bench.cpu.workload import Phase, Workload

SAME_BYTES = 0.97  # a peer that reads this fraction of our bytes, or more, reads as many


@dataclass(frozen=True)
class Entry:
    """A contender as it is told of."""

    name: str
    version: str
    weight_bytes: int
    int8: bool
    quality: Quality | None

    @property
    def ours(self) -> bool:
        return self.name.startswith("llmc")


@dataclass(frozen=True)
class Result:
    """Spreads over the rounds. `used`: what the rate amounts to, bytes of weights read per second in decode, operations
    per second in prefill; `fraction`: of what the machine could do at that moment.
    """

    workload: str
    contender: str
    rate: Spread  # tokens/s
    used: Spread
    unit: str  # GB/s or GFLOP/s
    fraction: Spread
    others: float  # cores that other processes used meanwhile, median
    stolen: float

    @classmethod
    def of(cls, workload: Workload, entry: Entry, samples: Sequence[Sample], work: ModelWork) -> Result:
        here = [s for s in samples if s.row == workload.name and s.contender == entry.name]
        prefill = workload.phase is Phase.PREFILL
        cost = work.prefill_operations(workload.prompt_len) / workload.prompt_len
        cost = cost if prefill else entry.weight_bytes / workload.batch
        return cls(
            workload=workload.name,
            contender=entry.name,
            rate=Spread.of([s.rate for s in here]),
            used=Spread.of([s.rate * cost for s in here]),
            unit="GFLOP/s" if prefill else "GB/s",
            fraction=Spread.of([s.rate * cost / s.limit for s in here]),
            others=median(s.load.others for s in here),
            stolen=median(s.load.stolen for s in here),
        )


@dataclass(frozen=True)
class Lead:
    """Our engine over the best peer that reads as many bytes a token, or more; of samples of one round."""

    workload: str
    ours: str
    peer: str
    ratio: Spread


def leads(workload: str, entries: Sequence[Entry], samples: Sequence[Sample]) -> Iterator[Lead]:
    found = {entry.name: rates(samples, workload, entry.name) for entry in entries}
    for ours in (entry for entry in entries if entry.ours and found[entry.name]):
        peers = [
            entry.name
            for entry in entries
            if not entry.ours and found[entry.name] and entry.weight_bytes >= SAME_BYTES * ours.weight_bytes
        ]
        if peers:
            best = max(peers, key=lambda name: median(found[name].values()))
            if both := ratios(found[ours.name], found[best]):
                yield Lead(workload, ours.name, best, Spread.of(both))


def told(entries: Sequence[Entry]) -> Iterator[str]:
    """Who raced."""
    yield f"{'':24} {'MB/step':>8} {'KL mean':>9} {'KL p99':>9} {'top-1':>7}  version"
    for entry in entries:
        quality = entry.quality
        said = f"{quality.mean_kl:9.5f} {quality.p99_kl:9.4f} {quality.top1:7.1%}" if quality else f"{'not given':>27}"
        yield f"{entry.name:24} {entry.weight_bytes / 1e6:8.1f} {said}  {entry.version}"


def report(results: Sequence[Result], found: Sequence[Lead]) -> Iterator[str]:
    """The tables, line by line."""
    yield "medians (lowest..highest) over rounds; fraction: of a plain read of as many bytes, or of the multipliers"
    for workload in dict.fromkeys(result.workload for result in results):
        yield f"{workload:24} {'tok/s':>22} {'':>14} {'fraction':>9} {'others':>7} {'stolen':>7}"
        for r in (result for result in results if result.workload == workload):
            yield (
                f"  {r.contender:22} {r.rate.show():>22} {r.used.median / 1e9:7.1f} {r.unit:7} {r.fraction.median:8.0%}"
                f" {r.others:7.2f} {r.stolen:7.2f}"
            )
    if found:
        yield "our engines over the best peer that reads as many bytes a step, or more (ratios of one round's samples)"
    for lead in found:
        yield f"  {lead.workload:12} {lead.ours:16} over {lead.peer:22} {lead.ratio.show(digits=2)}"
