"""What a race of servers found: medians over rounds, and ratios of samples of one round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench.cpu.load import Load
from bench.cpu.samples import Spread
from llmc.serve.load.metrics import Summary

OURS = "llmc"


@dataclass(frozen=True)
class Sample:
    """One contender in one round. `ready`: seconds from the server's start until it was healthy and had a model."""

    round: int
    precision: str
    contender: str
    summary: Summary
    load: Load
    ready: float | None


Figure = Callable[[Summary], float]


def output_tps(summary: Summary) -> float:
    return summary.output_tps


def ttft_p95(summary: Summary) -> float:
    assert summary.all.ttft is not None
    return summary.all.ttft.p95


def tpot_mean(summary: Summary) -> float:
    assert summary.all.tpot is not None
    return summary.all.tpot.mean


def ratios(samples: Sequence[Sample], precision: str, contender: str, figure: Figure) -> list[float]:
    """Our server's figure over another's, for each round that has both."""
    ours, theirs = (
        {s.round: figure(s.summary) for s in samples if s.precision == precision and s.contender == name}
        for name in (OURS, contender)
    )
    return [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys())]


def report(samples: Sequence[Sample]) -> Iterator[str]:
    """The table, line by line: our server over each other one, a row for each contender."""
    yield "medians (lowest..highest) over rounds; ratios: llmc serve over the row's, of one round's samples"
    yield (
        f"{'':22} {'output tok/s':>18} {'ratio':>18} {'TTFT p95 ms':>20} {'ratio':>18} {'TPOT ms':>8}"
        f" {'ready s':>8} {'client':>7} {'others':>7} {'stolen':>7}"
    )
    for precision, contender in dict.fromkeys((s.precision, s.contender) for s in samples):
        yield _line(samples, precision, contender)


def _line(samples: Sequence[Sample], precision: str, contender: str) -> str:
    here = [s for s in samples if s.precision == precision and s.contender == contender]

    def ratio(figure: Figure) -> str:
        found = ratios(samples, precision, contender, figure)
        return Spread.of(found).show(digits=2) if found and contender != OURS else ""

    rate, ttft = (Spread.of([figure(s.summary) for s in here]) for figure in (output_tps, ttft_p95))
    ready = [s.ready for s in here if s.ready is not None]
    client = [s.summary.client.cpu for s in here if s.summary.client.cpu is not None]
    return (
        f"{precision + ' ' + contender:22} {rate.show():>18} {ratio(output_tps):>18} {ttft.show():>20}"
        f" {ratio(ttft_p95):>18} {median(tpot_mean(s.summary) for s in here):8.2f}"
        f" {f'{median(ready):.2f}' if ready else '':>8} {f'{median(client):.3f}' if client else '':>7}"
        f" {median(s.load.others for s in here):7.2f} {median(s.load.stolen for s in here):7.2f}"
    )
