"""The race as a picture: a bar for each contender in each workload, and quality beside what a step reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.cpu.results import Entry, Result

OURS, FAINT = "#1f5fa8", {"llama.cpp": "#c98a2b", "OpenVINO": "#7a9e4e", "ONNX Runtime": "#a66a9c", "vLLM": "#8a8a8a"}


def colour(name: str) -> str:
    return next((faint for peer, faint in FAINT.items() if name.startswith(peer)), OURS)


def picture(out: Path, title: str, entries: Sequence[Entry], results: Sequence[Result]) -> None:
    import matplotlib

    matplotlib.use("svg" if out.suffix == ".svg" else "agg")
    from matplotlib import pyplot

    workloads = list(dict.fromkeys(result.workload for result in results))
    height = 1.2 + 0.24 * len(entries)
    figure, axes = pyplot.subplots(1, len(workloads) + 1, figsize=(3.2 * (len(workloads) + 1), height), squeeze=False)
    for axis, workload in zip(axes[0], workloads, strict=False):
        _bars(axis, workload, [result for result in results if result.workload == workload])
    _quality(axes[0][-1], entries)
    figure.suptitle(f"{title}: tokens per second (fraction of the floor), and what a format costs", fontsize=10)
    figure.tight_layout()
    figure.savefig(out, dpi=130)
    pyplot.close(figure)


def _bars(axis: Any, workload: str, results: Sequence[Result]) -> None:
    ordered = sorted(results, key=lambda result: result.rate.median)
    names = [result.contender for result in ordered]
    medians = [result.rate.median for result in ordered]
    beside = [
        [r.rate.median - r.rate.lowest for r in ordered],
        [r.rate.highest - r.rate.median for r in ordered],
    ]
    axis.barh(names, medians, xerr=beside, color=[colour(name) for name in names], ecolor="#00000066", height=0.7)
    for place, result in enumerate(ordered):
        said = f"  {result.rate.median:.0f} ({result.fraction.median:.0%})"
        axis.text(result.rate.highest, place, said, va="center", fontsize=6)
    axis.margins(x=0.3)
    _plain(axis, workload)


def _quality(axis: Any, entries: Sequence[Entry]) -> None:
    """KL over megabytes: lower and further left is better. Names stand in a column, none on another."""
    judged = [(e, e.quality.mean_kl) for e in entries if e.quality and e.quality.mean_kl > 0]
    axis.set_yscale("log")
    for entry, kl in judged:
        axis.scatter(entry.weight_bytes / 1e6, kl, color=colour(entry.name), s=18)
    for row, (entry, kl) in enumerate(sorted(judged, key=lambda found: found[1])):
        place = (1.12, (row + 0.5) / len(judged))
        line = {"arrowstyle": "-", "color": colour(entry.name), "lw": 0.5}
        at = (entry.weight_bytes / 1e6, kl)
        options = {"textcoords": "axes fraction", "va": "center", "fontsize": 6, "arrowprops": line}
        axis.annotate(f"{entry.name} {kl:.2g}", at, place, annotation_clip=False, **options)
    axis.set_xlabel("MB of weights a step", fontsize=7)
    _plain(axis, "mean KL from float32, nats")


def _plain(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=8)
    axis.tick_params(labelsize=6.5)
    axis.spines[["top", "right"]].set_visible(False)
