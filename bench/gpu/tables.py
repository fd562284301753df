"""The report as people read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SHOWN = 6  # items left out; the JSON has all
_SIZES = {"weights": "weights", "kv": "KV cache", "scratch": "scratch"}


def show(name: str, outcome: Mapping[str, Any], limits: Mapping[str, float]) -> Iterator[str]:
    """Lines of one part. limits: bandwidth and bf16, of the card."""
    items: Mapping[str, Mapping[str, Any]] = outcome["items"]
    wrong = {key: item["error"] for key, item in items.items() if item.get("error")}
    counts = f"{len(items)} of {len(items) + len(outcome['errors']) + len(outcome['left_out'])}"
    yield f"{name}: {counts}, {len(wrong) + len(outcome['errors'])} wrong, {outcome['seconds']:.0f} s"
    if outcome["error"]:
        yield f"  FAILED {_last(outcome['error'])}"
    for key, error in {**wrong, **outcome["errors"]}.items():
        yield f"  WRONG {key}: {_last(error)}"
    for key, item in items.items():
        if item.get("not_checked"):
            yield f"  NOT CHECKED {key}: {item['not_checked']}"
    for key, item in items.items():
        if item.get("old"):
            yield f"  OLD {key}: prepared from other sources than these; prepare.py makes it anew"
    if left := outcome["left_out"]:
        more = f"; and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        yield f"  LEFT OUT {'; '.join(left[:SHOWN])}{more}"
    if name == "limits":
        yield from _limits(items)
    elif name == "times":
        yield from _times(items, limits)
    elif name.startswith("model "):
        yield from _model(items)


def _last(text: str) -> str:
    """The line of a traceback that says what happened."""
    return text.strip().splitlines()[-1] if text.strip() else "no reason given"


def _limits(items: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if "card" in items:
        card = items["card"]
        cuda = f"{card['cuda'] // 1000}.{card['cuda'] % 1000 // 10}"
        memory = f"{card['memory_bytes'] / 2**30:.0f} GiB"
        yield f"  {card['name']}, {card['arch']}, {card['sms']} SMs, {memory}, driver for CUDA {cuda}"
    rates = [
        f"{key} {items[key]['bytes_per_second'] / 1e9:.0f} GB/s" for key in ("copy", "read", "upload") if key in items
    ]
    if "matrix" in items:
        found = items["matrix"]
        rates.append(f"bf16 {found['operations_per_second'] / 1e12:.1f} TFLOP/s ({found['instruction']})")
    yield "  " + "; ".join(rates)


def _times(items: Mapping[str, Mapping[str, Any]], limits: Mapping[str, float]) -> Iterator[str]:
    rows = []
    for key, item in items.items():
        if "seconds" not in item:
            yield f"  libraries: {item['torch']}"
            continue
        seconds = max(sum(item["seconds"]), 1e-9)
        bandwidth, rate = item["bytes"] / seconds, item["flops"] / seconds
        theirs = item["library_seconds"]
        rows.append(
            [
                key,
                f"{1e6 * seconds:.1f}",
                f"{bandwidth / 1e9:.0f}",
                _percent(bandwidth, limits["bandwidth"]),
                f"{rate / 1e12:.1f}" if rate else "-",
                _percent(rate, limits["bf16"]) if rate else "-",
                f"{1e6 * theirs:.1f}" if theirs else "-",
                f"{theirs / seconds:.2f}x" if theirs else "-",
            ]
        )
    head = ["kernel", "us", "GB/s", "of read", "TFLOP/s", "of mma", "torch us", "torch/ours"]
    yield from _table(head, rows)


def _model(items: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = []
    for key, item in items.items():
        if "seconds" not in item:
            continue
        seconds, floor, expected = item["seconds"], item.get("floor_s"), item.get("expected_s")
        rows.append(
            [
                key,
                _ms(seconds),
                _ms(floor),
                _percent(floor, seconds),
                _ms(expected),
                _percent(expected, seconds),
                f"{item['tokens_per_second']:,.0f}" if "tokens_per_second" in item else "-",
                _ms(item.get("graph_build_s")),
            ]
        )
    head = ["", "ms", "floor", "of it", "predicted", "of it", "tokens/s", "graph ms"]
    yield from _table(head, rows)
    if "cold start" in items and "load_s" in items["cold start"]:
        c = items["cold start"]
        yield (
            f"  cold start: imports {c['imports_s']:.2f} s, load {c['load_s']:.2f} s, first token "
            f"{c['first_token_s']:.2f} s; hashing, in another thread of load, {c['hash_s']:.2f} s"
        )
        sizes = (f"{c[f'{name}_bytes'] / 1e9:.3f} GB of {word}" for name, word in _SIZES.items())
        yield f"  {', '.join(sizes)}"
    if "sound" in items and "compared_tokens" in items["sound"]:
        s = items["sound"]
        yield (
            f"  {s['compared_tokens']} tokens of one prompt compared over all batches; standard deviation of logits "
            f"{s['logits_std']:.2f}; {s['free_bytes'] / 2**20:.0f} MiB of the card are free with all graphs built"
        )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.3f}" if seconds < 0.1 else f"{1e3 * seconds:,.0f}"


def _percent(part: float | None, whole: float | None) -> str:
    return "-" if part is None or not whole else f"{part / whole:.0%}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield "  " + "  ".join(cells)
