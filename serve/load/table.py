"""What a bench found, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.table import Table

from llmc.serve.load.campaign import Result
from llmc.serve.load.metrics import Latencies, Percentiles, Summary
from llmc.serve.load.offline import Speed


def serving_tables(results: Sequence[Result], against_first: bool) -> Iterator[Table | str]:
    """One table over all, then the latencies of each, then what is to be said besides.

    `against_first`: with the ratios of the others to the first.
    """
    yield _overview(results)
    if against_first:
        yield _ratios(results)
    for result in results:
        yield _latencies(result)
    for result in results:
        yield from (f"{result.name}: {line}" for line in _remarks(result))


def offline_table(speeds: Sequence[Speed]) -> Table:
    table = _table("case", "tokens/s", "lowest..highest", "step ms", "MFU", "MBU", title="offline, medians")
    for s in speeds:
        span = f"{s.lowest:,.0f}..{s.highest:,.0f}"
        table.add_row(s.case.name, f"{s.tps:,.1f}", span, f"{s.step * 1e3:.2f}", _percent(s.mfu), _percent(s.mbu))
    return table


def _overview(results: Sequence[Result]) -> Table:
    optional = [_optional(result.median) for result in results]
    shown = [name for name in optional[0] if any(cells[name] for cells in optional)]
    rounds = len(results[0].repetitions)
    title = f"throughput, medians of {rounds} rounds" if rounds > 1 else "throughput"
    columns = ("load", "requests/s", "output tok/s", "total tok/s", "padded tok/s", "useful")
    table = _table(*columns, *shown, title=title)
    for result, cells in zip(results, optional, strict=True):
        m = result.median
        rates = [f"{m.rps:.2f}", *(f"{tps:,.1f}" for tps in (m.output_tps, m.total_tps, m.padded_tps))]
        table.add_row(result.name, *rates, _percent(m.useful_share), *(cells[name] for name in shown))
    return table


def _optional(m: Summary) -> dict[str, str]:
    """Cells of columns that are shown where anything is known."""
    return {
        "goodput/s": _number(m.all.goodput, 2),
        "within SLO": _percent(m.all.good_share),
        "KV peak": _percent(m.kv_peak),
        "memory MiB": _number(_mib(m.memory_bytes), 0),
        "MFU": _percent(m.utilisation.mfu if m.utilisation else None),
        "MBU": _percent(m.utilisation.mbu if m.utilisation else None),
        "per M output": _number(m.price.output if m.price else None, 3),
        "per M tokens": _number(m.price.total if m.price else None, 3),
    }


def _ratios(results: Sequence[Result]) -> Table:
    """What is lost without each technique: above 1 the first is better, in every column."""
    title = "times as good with it: medians of the rounds' ratios"
    table = _table("without", "output tok/s", "mean TTFT", "p95 TTFT", "mean TPOT", "p99 ITL", "p95 E2E", title=title)
    for result in results[1:]:
        pairs = list(zip(results[0].repetitions, result.repetitions, strict=True))
        cells = [_ratio([(with_it.output_tps, without.output_tps) for with_it, without in pairs])]
        for name, value in (("ttft", "mean"), ("ttft", "p95"), ("tpot", "mean"), ("itl", "p99"), ("e2e", "p95")):
            cells.append(
                _ratio([(_time(without, name, value), _time(with_it, name, value)) for with_it, without in pairs])
            )
        table.add_row(result.name, *cells)
    return table


def _time(summary: Summary, name: str, value: str) -> float:
    found = getattr(summary.all, name)
    return 0.0 if found is None else float(getattr(found, value))


def _ratio(pairs: Sequence[tuple[float, float]]) -> str:
    ratios = [above / below for above, below in pairs if below]
    return f"{median(ratios):.2f}" if ratios else ""


def _latencies(result: Result) -> Table:
    table = _table("ms", "mean", "p50", "p90", "p95", "p99", title=f"latency, {result.name}")
    _add(table, "", result.median.all)
    for name, latencies in result.median.by_class.items():
        _add(table, f"{name} ", latencies)
    return table


def _add(table: Table, prefix: str, found: Latencies) -> None:
    for name, values in (("TTFT", found.ttft), ("TPOT", found.tpot), ("ITL", found.itl), ("E2E", found.e2e)):
        if values is not None:
            table.add_row(prefix + name, *_cells(values))


def _cells(values: Percentiles) -> list[str]:
    return [f"{value:,.1f}" for value in (values.mean, values.p50, values.p90, values.p95, values.p99)]


def _remarks(result: Result) -> Iterator[str]:
    m = result.median
    tokens = f"{m.prompt_tokens:,} tokens in, {m.output_tokens:,} out"
    yield f"{m.requests} requests in {m.seconds:.1f} s, {tokens}{_client(m)}"
    if m.tokens_per_output > 1.05:
        yield f"{m.tokens_per_output:.1f} tokens in an output on average: ITL is the gap between outputs"
    if m.cached_tokens:
        yield f"{m.cached_tokens:,} prompt tokens came from a prefix cache"
    if m.short:
        yield f"{m.short} answers are shorter than asked: the server does not know ignore_eos, or has less room"
    for error, count in result.errors.most_common(5):
        yield f"FAILED {count} times: {error}"


def _client(summary: Summary) -> str:
    if summary.client.cpu is None:
        return ""
    return f"; the client used {summary.client.cpu:.3f} cores and was {summary.client.lag:.1f} ms late (p99)"


def _table(*columns: str, title: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", no_wrap=place == 0)
    return table


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _mib(value: int | None) -> float | None:
    return None if value is None else value / 2**20
