"""What to expect of a model on a card: the compiler's roofline (docs/roofline.md), on that card's measured limits.

Floors: bytes over the measured bandwidth, operations over the measured rate of matrix instructions; nothing beats them.
Expected: what `llmc inspect --roofline` says of the engine on such a card, by its data sheet; predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from llmc.codegen.cuda.target.gpus import Gpu
from llmc.codegen.roofline import Peaks
from llmc.compiler.roofline.lowering import Lowering, read_entries
from llmc.compiler.roofline.predict import Point, predict
from llmc.compiler.targets.cuda import CudaBackend
from llmc.runtime.artifact.artifact import read_manifest


@dataclass(frozen=True)
class Measured:
    """Of the card: bytes per second of its memory and of uploads, operations per second in bf16."""

    bandwidth: float
    upload: float
    bf16: float


@dataclass(frozen=True)
class Expectation:
    """Seconds; None: not known."""

    floor_s: float | None
    expected_s: float | None


def card_as_measured(gpu: Gpu, sms: int, l2_bytes: int, measured: Measured) -> Gpu:
    """f16 runs at bf16's rate on every GPU here; f32, which nothing is measured of, as the data sheet says."""
    peaks = Peaks(f32=gpu.peaks.f32, f16=measured.bf16, bf16=measured.bf16)
    return replace(gpu, sms=sms, l2_bytes=l2_bytes, bandwidth=measured.bandwidth, peaks=peaks)


class Expectations:
    """Of one engine folder, whole or hollow, on the card at hand."""

    def __init__(self, engine: Path, gpu: Gpu, card: Gpu, measured: Measured) -> None:
        """gpu: by its data sheet; card: as it was measured."""
        manifest = read_manifest(engine)
        target = manifest.targets[0]
        text = (engine / target.plans / "graph.llmc").read_text()
        self._lowering = Lowering(read_entries(text), target.name)
        self._card, self._gpu = card, gpu
        self._chunk = manifest.limits.max_tokens
        self._upload = measured.upload
        self._weights = target.memory.weights_bytes

    def tpot(self, batch: int, context: int) -> Expectation:
        floor, expected = (self._point(gpu, batch, context).tpot for gpu in (self._card, self._gpu))
        return Expectation(floor.floor_s, expected.expected_s)

    def ttft(self, length: int) -> Expectation:
        floor, expected = (self._point(gpu, 1, length).ttft for gpu in (self._card, self._gpu))
        return Expectation(floor.floor_s, expected.expected_s)

    def cold_start(self) -> Expectation:
        """Of the weights' way to the card alone; how long Python and the driver take to start is not predicted."""
        return Expectation(self._weights / self._upload if self._upload else None, None)

    def _point(self, gpu: Gpu, batch: int, length: int) -> Point:
        (point,) = predict(self._lowering, CudaBackend(gpu), [batch], length, self._chunk).points
        return point
