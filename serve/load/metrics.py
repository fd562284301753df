"""The figures of a run, as the field defines them.

TTFT: from a request's arrival to its first output. E2E: from its arrival to its end. TPOT = (E2E - TTFT) / (N - 1) of
its N tokens. ITL: each gap between two outputs of one answer, as a reader sees it; where a server joins tokens in one
output its ITL is longer than its TPOT. Rates are over the whole run, its ramps at both ends included. Percentiles are
interpolated linearly; times are milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from statistics import median
from typing import Any, TypeVar

import numpy as np

from llmc.serve.load.padding import padded_tokens
from llmc.serve.load.records import Record, Run
from llmc.serve.load.slo import Slo
from llmc.serve.load.utilisation import Machine, Utilisation, utilisation

T = TypeVar("T")


@dataclass(frozen=True)
class Percentiles:
    """Milliseconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Percentiles | None:
        values = np.array(list(seconds)) * 1e3
        if not len(values):
            return None
        return cls(float(values.mean()), *(float(p) for p in np.percentile(values, (50, 90, 95, 99))))


@dataclass(frozen=True)
class Latencies:
    """Of a set of answers. `goodput`: those a second that meet the SLO; `good_share`: of all requests, failed too."""

    requests: int
    ttft: Percentiles | None
    tpot: Percentiles | None
    itl: Percentiles | None
    e2e: Percentiles | None
    goodput: float | None
    good_share: float | None

    @classmethod
    def of(cls, records: Sequence[Record], seconds: float, slo: Slo | None) -> Latencies:
        answered = [record for record in records if record.error is None]
        good = None if slo is None else sum(slo.met(record) for record in answered)
        return cls(
            len(records),
            Percentiles.of(record.ttft for record in answered),
            Percentiles.of(tpot for record in answered if (tpot := record.tpot) is not None),
            Percentiles.of(gap for record in answered for gap in np.diff(record.outputs)),
            Percentiles.of(record.e2e for record in answered),
            None if good is None else good / seconds,
            None if good is None else good / len(records),
        )


@dataclass(frozen=True)
class Price:
    """Of a million tokens, in the money of the price per hour: of output, and of input and output together."""

    output: float
    total: float


@dataclass(frozen=True)
class Client:
    """The load generator itself.

    `cpu`: cores that it used, if anything was answered. `lag`: how late it sent what had arrived, p99, ms.
    """

    cpu: float | None
    lag: float


@dataclass(frozen=True)
class Summary:
    """One run, or the medians of several. Tokens and rates are of requests that were answered.

    `useful_share`: of the tokens that static batches would have computed for these answers, padded in both directions
    to their longest; `padded_tps`: how many of those a second such batches would have to compute to be as fast.
    `tokens_per_output`: above 1 where a server joins tokens.
    """

    requests: int
    failed: int
    short: int  # answers with fewer tokens than were asked for
    seconds: float
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    rps: float
    output_tps: float
    total_tps: float
    padded_tps: float
    useful_share: float
    tokens_per_output: float
    all: Latencies
    by_class: Mapping[str, Latencies]
    kv_peak: float | None
    memory_bytes: int | None
    utilisation: Utilisation | None
    price: Price | None
    client: Client


@dataclass(frozen=True)
class Terms:
    """By what a run is judged. `batch`: of static batches; `price`: of the machine, per hour."""

    batch: int
    slo: Slo | None = None
    price: float | None = None
    machine: Machine | None = None


def summarise(run: Run, terms: Terms) -> Summary:
    answered = run.answered
    seconds = max(run.seconds, 1e-9)
    prompt, output = (sum(each) for each in ([r.prompt_tokens for r in answered], [r.output_tokens for r in answered]))
    cached = [record.cached_tokens for record in answered if record.cached_tokens is not None]
    padded = padded_tokens([(r.prompt_tokens, r.output_tokens) for r in answered], terms.batch)
    classes = sorted({record.planned.latency for record in run.records if record.planned.latency is not None})
    lags = [record.sent - record.begin for record in run.records]
    return Summary(
        requests=len(run.records),
        failed=len(run.records) - len(answered),
        short=sum(record.output_tokens < record.planned.output_len for record in answered),
        seconds=run.seconds,
        prompt_tokens=prompt,
        cached_tokens=sum(cached) if cached else None,
        output_tokens=output,
        rps=len(answered) / seconds,
        output_tps=output / seconds,
        total_tps=(prompt + output) / seconds,
        padded_tps=padded / seconds,
        useful_share=(prompt + output) / padded if padded else 0.0,
        tokens_per_output=output / max(1, sum(len(record.outputs) for record in answered)),
        all=Latencies.of(run.records, seconds, terms.slo),
        by_class={
            name: Latencies.of([r for r in run.records if r.planned.latency == name], seconds, terms.slo)
            for name in classes
        },
        kv_peak=run.gauges.kv_peak,
        memory_bytes=run.gauges.memory_bytes,
        utilisation=utilisation(run, terms.machine),
        price=_price(terms.price, output / seconds, (prompt + output) / seconds),
        client=Client(None if run.client_cpu is None or not answered else run.client_cpu / seconds, _p99(lags) * 1e3),
    )


def errors(runs: Iterable[Run]) -> Counter[str]:
    """What went wrong in requests, and how often."""
    return Counter(record.error for run in runs for record in run.records if record.error is not None)


def medians(each: Sequence[T]) -> T:
    """Field by field, of repetitions of one thing: the median of numbers, and of what all of them have."""
    found = _median(list(each))
    assert isinstance(found, type(each[0]))
    return found


def _median(values: list[Any]) -> Any:
    first = values[0]
    if any(value is None for value in values):
        return None
    if is_dataclass(first) and not isinstance(first, type):
        parts = {f.name: _median([getattr(value, f.name) for value in values]) for f in fields(first)}
        return type(first)(**parts)
    if isinstance(first, Mapping):
        return {key: _median([value[key] for value in values if key in value]) for key in first}
    found = median(values)
    return round(found) if isinstance(first, int) else found


def _price(per_hour: float | None, output_tps: float, total_tps: float) -> Price | None:
    if per_hour is None or output_tps == 0:
        return None
    per_second = per_hour / 3600
    return Price(per_second / output_tps * 1e6, per_second / total_tps * 1e6)


def _p99(values: Sequence[float]) -> float:
    return float(np.percentile(values, 99)) if values else 0.0
