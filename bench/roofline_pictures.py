"""The pictures of docs/roofline.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10

from svg import FAINT, GRID, INK, Picture

from llmc.codegen.cuda.target.gpus import Gpu
from llmc.compiler.roofline.predict import Kernel, Prediction

# a hue for each target: the floor in full, what is expected in a tint
HUES = (("#2f6f4f", "#a9d1bb"), ("#2a5d9f", "#a8c5e8"), ("#9a5b13", "#ecca9e"))
DECODE_HUES, PREFILL_HUE = ("#7fb3e6", "#2a6fc0", "#123a6b"), "#b3541e"


def ms(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def bars(found: Mapping[str, Mapping[str, Prediction]], length: int) -> str:
    """TPOT of each model, GPU and batch: the floor, and what is expected behind it."""
    panel_w, panel_h, top = 470, 292, 80
    picture = Picture(980, top + (len(found) + 1) // 2 * panel_h + 24)
    picture.text(20, 30, "Time per output token: floor and prediction", 20, bold=True)
    note = (
        f"bf16, {length:,} tokens in every sequence. Predicted from shapes and data sheets; nothing here was measured."
    )
    picture.text(20, 52, note, 13, fill=FAINT)
    for i, (name, by_target) in enumerate(found.items()):
        _panel(picture, name, by_target, 20 + i % 2 * (panel_w + 10), top + i // 2 * panel_h, panel_w)
    y = picture.height - 22
    picture.bar(20, y, 26, 12, "#45515f")
    picture.text(52, y + 11, "floor: bytes that must move / bandwidth, or operations / peak")
    picture.bar(440, y, 26, 12, "#c3cad2")
    picture.text(472, y + 11, "predicted: with launches, ramps, waves and reachable fractions")
    return picture.svg()


def _panel(
    picture: Picture, name: str, by_target: Mapping[str, Prediction], x0: float, y0: float, width: float
) -> None:
    left, right = 96.0, 150.0
    most = max(p.tpot.expected_s or 0 for q in by_target.values() for p in q.points)
    scale = (width - left - right) / most
    picture.text(x0, y0 + 16, name, 15, bold=True)
    picture.text(x0 + left - 8, y0 + 32, "batch", 11, "end", FAINT)
    y = y0 + 36
    for (floor_hue, expected_hue), (target, prediction) in zip(HUES, by_target.items(), strict=True):
        picture.text(x0, y + 16, target.upper(), 12, bold=True, fill=floor_hue)
        for p in prediction.points:
            floor_s, expected_s = p.tpot.floor_s or 0, p.tpot.expected_s or 0
            picture.text(x0 + left - 8, y + 15, f"{p.batch}", 12, "end", FAINT)
            picture.bar(x0 + left, y + 3, expected_s * scale, 16, expected_hue)
            picture.bar(x0 + left, y + 3, floor_s * scale, 16, floor_hue)
            label = f"{ms(expected_s)} (floor {ms(floor_s)})"
            picture.text(x0 + left + expected_s * scale + 6, y + 15, label, 11)
            y += 24
        y += 7


def under_the_roof(prediction: Prediction, gpu: Gpu, model: str) -> str:
    """The linears and attentions of a model under a GPU's roof: decode at each batch, and prefill."""
    chart = _Chart(Picture(980, 520), (0.3, 20000.0), (1e12, 2e15))
    picture, peak = chart.picture, gpu.peaks.bf16
    assert peak is not None
    length = prediction.points[0].length
    picture.text(20, 30, f"{model} on {gpu.product}: its kernels under the roof", 20, bold=True)
    note = f"bf16, {length:,} tokens in every sequence. Line: data sheet. Points: predicted, not measured."
    picture.text(20, 52, note, 13, fill=FAINT)
    chart.grid()
    (x_lo, x_hi), ridge = chart.x_range, peak / gpu.bandwidth
    begin = max(x_lo, chart.y_range[0] / gpu.bandwidth)
    picture.line([chart.at(begin, begin * gpu.bandwidth), chart.at(ridge, peak), chart.at(x_hi, peak)], INK, 2)
    x, y = chart.at(x_hi, peak)
    picture.text(x - 6, y - 8, f"{peak / 1e12:,.0f} TFLOP/s, dense bf16", anchor="end")
    x, y = chart.at(20, 20 * gpu.bandwidth)
    picture.text(x - 10, y - 8, f"{gpu.bandwidth / 1e12:.2f} TB/s", anchor="end")
    series: list[tuple[str, Sequence[Kernel], str]] = [
        (f"decode, batch {p.batch}", p.tpot.kernels, hue) for p, hue in zip(prediction.points, DECODE_HUES, strict=True)
    ]
    series.append((f"prefill of {length:,}", prediction.points[0].ttft.kernels, PREFILL_HUE))
    for i, (label, kernels, hue) in enumerate(series):
        picture.dot(chart.left + 20, chart.top + 18 + 20 * i, 6, hue)
        picture.text(chart.left + 34, chart.top + 22 + 20 * i, label)
        for kernel in kernels:
            if kernel.matrix_flops and kernel.expected_s:
                at = chart.at(kernel.matrix_flops / kernel.memory_bytes, kernel.matrix_flops / kernel.expected_s)
                _mark(picture, kernel.op, at, hue)
    for i, (op, label) in enumerate((("packed_linear", "linear"), ("paged_attention", "attention"))):
        at = chart.left + 20, chart.top + 108 + 20 * i
        _mark(picture, op, at, FAINT)
        picture.text(at[0] + 14, at[1] + 4, label)
    return picture.svg()


def _mark(picture: Picture, op: str, at: tuple[float, float], hue: str) -> None:
    if op == "packed_linear":
        picture.dot(*at, 5.5, hue)
    else:
        picture.bar(at[0] - 5, at[1] - 5, 10, 10, hue)


class _Chart:
    """Two logarithmic axes: operations per byte, operations per second."""

    left, top, right_margin, bottom_margin = 80, 80, 30, 60

    def __init__(self, picture: Picture, x_range: tuple[float, float], y_range: tuple[float, float]) -> None:
        self.picture, self.x_range, self.y_range = picture, x_range, y_range
        self.right, self.bottom = picture.width - self.right_margin, picture.height - self.bottom_margin

    def at(self, x: float, y: float) -> tuple[float, float]:
        (x_lo, x_hi), (y_lo, y_hi) = self.x_range, self.y_range
        across = (log10(x) - log10(x_lo)) / (log10(x_hi) - log10(x_lo))
        up = (log10(y) - log10(y_lo)) / (log10(y_hi) - log10(y_lo))
        return self.left + across * (self.right - self.left), self.bottom - up * (self.bottom - self.top)

    def grid(self) -> None:
        for x in (1, 10, 100, 1000, 10000):
            at, _ = self.at(x, self.y_range[0])
            self.picture.line([(at, self.top), (at, self.bottom)], GRID)
            self.picture.text(at, self.bottom + 18, f"{x:,}", 12, "middle", FAINT)
        for y in (1, 10, 100, 1000):
            _, at = self.at(1, y * 1e12)
            self.picture.line([(self.left, at), (self.right, at)], GRID)
            self.picture.text(self.left - 8, at + 4, f"{y:,}", 12, "end", FAINT)
        self.picture.text(
            (self.left + self.right) / 2, self.bottom + 42, "operations per byte of memory traffic", 13, "middle"
        )
        self.picture.upright(24, (self.top + self.bottom) / 2, "TFLOP/s", 13)
