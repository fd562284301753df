"""What a race found: one result per row, as text and as JSON."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.cpu.limits import Peak
from bench.cpu.llamacpp import LlamaCppContender, ModelWork
from bench.cpu.llmc_contender import LlmcContender
from bench.cpu.samples import Sample, Spread, rates, ratios
from bench.cpu.workload import Phase, Workload

READ, READ_MAPPED = "read", "read mapped"  # the probe: of anonymous huge pages; of the engine's weights where they are


class Precision(enum.Enum):
    """Of our weights; llama.cpp's are BF16 and Q8_0."""

    BF16 = "bf16"
    INT8 = "int8"


@dataclass(frozen=True)
class Row:
    """One comparison. `buffer`: uint8, as many bytes as our engine's weights, for the read probe."""

    precision: Precision
    workload: Workload
    ours: LlmcContender
    theirs: LlamaCppContender
    buffer: npt.NDArray[np.uint8]

    @property
    def name(self) -> str:
        return f"{self.precision.value} {self.workload.name}"


@dataclass(frozen=True)
class Result:
    """Spreads over the rounds of one row; `speedup` and the fractions are of samples of the same round.

    `used` is what the rates amount to: bytes of weights read per second in decode, operations per second in prefill.
    `limit` is what the machine can do of that: the read probe, or the widest multiply-accumulate.
    """

    name: str
    ours: Spread  # tokens/s
    theirs: Spread
    speedup: Spread  # ours / theirs
    unit: str  # GB/s or GFLOP/s
    used: tuple[Spread, Spread]  # ours, theirs
    fraction: tuple[Spread, Spread]  # of the limit
    limit: Spread
    others: float  # cores that other processes used meanwhile, median
    stolen: float

    @classmethod
    def of(cls, row: Row, samples: list[Sample], work: ModelWork, peak: float) -> Result:
        """`peak`: operations per second."""
        here = [s for s in samples if s.row == row.name]
        ours, theirs = (rates(here, row.name, c.name) for c in (row.ours, row.theirs))
        if row.workload.phase is Phase.PREFILL:
            per_token = work.prefill_operations(row.workload.prompt_len) / row.workload.prompt_len
            costs, unit, limit = (per_token, per_token), "GFLOP/s", dict.fromkeys(ours, peak)
        else:
            costs = (row.ours.weight_bytes / row.workload.batch, row.theirs.weight_bytes / row.workload.batch)
            unit, limit = "GB/s", rates(here, row.name, READ)
        used = [{k: v * cost for k, v in side.items()} for side, cost in zip((ours, theirs), costs, strict=True)]
        loads = [s.load for s in here]
        return cls(
            name=row.name,
            ours=Spread.of(list(ours.values())),
            theirs=Spread.of(list(theirs.values())),
            speedup=Spread.of(ratios(ours, theirs)),
            unit=unit,
            used=(Spread.of(list(used[0].values())), Spread.of(list(used[1].values()))),
            fraction=(Spread.of(ratios(used[0], limit)), Spread.of(ratios(used[1], limit))),
            limit=Spread.of(list(limit.values())),
            others=float(np.median([load.others for load in loads])),
            stolen=float(np.median([load.stolen for load in loads])),
        )


@dataclass(frozen=True)
class Machine:
    """The machine's limits as they were before the race."""

    target: str
    threads: int
    peaks: dict[Precision, tuple[Peak, float]]  # operations per second


def report(machine: Machine, results: list[Result], samples: list[Sample]) -> Iterator[str]:
    """The table, line by line."""
    peaks = ", ".join(f"{kind.name.lower()} {rate / 1e9:.0f} Gop/s" for kind, rate in machine.peaks.values())
    yield f"{machine.target}, {machine.threads} threads; peak {peaks}"
    for name in (READ, READ_MAPPED):
        if found := [s.rate for s in samples if s.contender == name]:
            yield f"{name}: {Spread.of(found).show(1e-9, 1)} GB/s"
    yield "medians (lowest..highest) over rounds; a ratio and a fraction are of one round's samples"
    yield (
        f"{'':15} {'llmc tok/s':>20} {'llama.cpp tok/s':>20} {'ratio':>18}"
        f" {'llmc':>16} {'llama.cpp':>10} {'of limit':>10}  others' cores"
    )
    for r in results:
        mine, its = (s.median / 1e9 for s in r.used)
        yield (
            f"{r.name:15} {r.ours.show():>20} {r.theirs.show():>20} {r.speedup.show(digits=2):>18}"
            f" {mine:8.1f} {r.unit:>7} {its:10.1f} {r.fraction[0].median:5.0%}{r.fraction[1].median:5.0%}"
            f"  {r.others:.2f} (stolen {r.stolen:.2f})"
        )
