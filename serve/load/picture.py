"""Latency against throughput over a sweep, as a PNG. Needs matplotlib (extra `bench`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from llmc.serve.load.campaign import Result
from llmc.serve.load.metrics import Percentiles

INK, FAINT, GRID = "#1f2933", "#5f6b7a", "#d9dee5"
HUES = ("#2a6fc0", "#b3541e")


def draw(results: Sequence[Result], title: str, path: Path) -> None:
    """TTFT, and TPOT beside it, of every load over the output tokens a second that it reached."""
    figure = Figure(figsize=(11, 4.8), dpi=150, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")
    panels = figure.subplots(1, 2)
    for axes, name in zip(panels, ("TTFT", "TPOT"), strict=True):
        _panel(axes, name, results)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper right", ncols=2, frameon=False, labelcolor=INK)
    figure.savefig(path)


def _panel(axes: Axes, name: str, results: Sequence[Result]) -> None:
    found = [(result, _latency(result, name)) for result in results]
    drawn = [(result, values) for result, values in found if values is not None]
    rates = [result.median.output_tps for result, _ in drawn]
    middle, tail = [values.p50 for _, values in drawn], [values.p95 for _, values in drawn]
    axes.fill_between(rates, middle, tail, color=HUES[0], alpha=0.10, linewidth=0)
    axes.plot(rates, tail, "o-", color=HUES[1], label="p95", markersize=5)
    axes.plot(rates, middle, "o-", color=HUES[0], label="p50", markersize=5)
    for (result, _), rate, height in zip(drawn, rates, tail, strict=True):
        label = result.name.removesuffix(" in flight").removesuffix(" requests/s")
        axes.annotate(label, (rate, height), (0, 7), textcoords="offset points", ha="center", color=FAINT, fontsize=8)
    axes.set_title(f"{name}, ms; at the points: {_kind(results)}", loc="left", color=INK, fontsize=10)
    axes.set_xlabel("output tokens / s", color=FAINT)
    axes.set_xlim(0, max(rates, default=1.0) * 1.08 or 1.0)
    axes.set_ylim(0, max(tail, default=1.0) * 1.12 or 1.0)
    axes.grid(color=GRID, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=FAINT)


def _latency(result: Result, name: str) -> Percentiles | None:
    found = result.median.all
    return found.ttft if name == "TTFT" else found.tpot


def _kind(results: Sequence[Result]) -> str:
    return "requests/s" if results[0].load.rate is not None else "requests in flight"
