"""Every kernel of the catalog: correct on fresh inputs, then timed on large ones.

Both use the runners of tests/cuda, which compute in float64 on the host what they expect: a kernel that is tested is
checked here without further work; to be timed it needs a line in TIMED.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from card import CardLab, elapsed_seconds, events, record
from harness import Shape
from linear_shapes import S, mma, wgmma
from shapes import quick

from llmc.codegen.cuda.attention import DecodeAttentionParams, PrefillAttentionParams
from llmc.codegen.cuda.attention_layer import Layer
from llmc.codegen.cuda.kernel import KernelParams
from llmc.codegen.cuda.linear_params import LinearParams
from llmc.codegen.cuda.sample import SampleParams
from llmc.compiler.ir.types import DType
from llmc.emulator.session import Argument, DeviceArray, Mode, Schedule


@dataclass(frozen=True)
class Timed:
    """A kernel and the shape it is timed at. flops: of its matrix products, 0 where memory is all that counts."""

    params: KernelParams
    shape: Shape
    flops: int = 0


def _linear(params: LinearParams, tokens: int) -> Timed:
    shape = params.shape
    return Timed(params, {"epilogue": "plain", "T": tokens, "rows": tokens}, 2 * tokens * shape.width * shape.k)


# Llama-3.1-8B's sizes.
_LAYER = Layer(DType.BF16, 32, 8, 128, 128, 128)
TIMED: tuple[Timed, ...] = (
    _linear(mma("plain", 4096, 4096, 512, 64, 8, S, 4), 8),
    _linear(mma("plain", 4096, 4096, 512, 128, 128, S, 3), 1024),
    _linear(wgmma("plain", 4096, 4096, 512, 128, 128, S, 4), 1024),
    Timed(DecodeAttentionParams(_LAYER), {"contexts": (4096,) * 4, "rows": (1,) * 4}),
    Timed(PrefillAttentionParams(_LAYER, DType.BF16), {"contexts": (1024,), "rows": (1024,)}),
    Timed(SampleParams(128256, 128256), {"rows": 1, "behind": 0}),
    Timed(SampleParams(128256, 128256), {"rows": 64, "behind": 0}),
)


@dataclass(frozen=True)
class Result:
    """One kernel at one shape. error: empty where the result is right. seconds: median of a launch with cold caches,
    one for each launch the operation takes. bytes: of the case's arrays, each counted once."""

    kernel: str
    shape: Shape
    error: str
    seconds: tuple[float, ...] = ()
    bytes: int = 0
    flops: int = 0


@dataclass
class TimingLab(CardLab):
    """Times each launch of a runner, `repeats` times, and then gives the arrays back the values of the first launch.
    Before each, `flush_bytes` are written, to leave nothing else in the L2 cache."""

    repeats: int = 20
    flush_bytes: int = 0
    seconds: list[float] = field(default_factory=list)
    bytes: int = 0

    def launch(
        self,
        params: KernelParams,
        grid: tuple[int, ...],
        *args: Argument,
        suffix: str = "",
        block: int = 0,
        smem_bytes: int | None = None,
    ) -> None:
        card, kernel = self.emulator, self.kernel(params, suffix)
        smem = params.smem_bytes if smem_bytes is None else smem_bytes
        kernel(grid, block or params.threads, smem, *args)
        saved = [(a, a.numpy()) for a in self._arrays]
        self.bytes = sum(a.nbytes for a in self._arrays)
        pair, taken = events(card), []
        if self._flush is None:
            self._flush = card.empty((self.flush_bytes // 4,), np.uint32)
        flush = (ctypes.c_uint64(self._flush.pointer), ctypes.c_uint(0), ctypes.c_size_t(self.flush_bytes // 4))
        for _ in range(self.repeats):
            card.call("cuMemsetD32Async", *flush, ctypes.c_void_p(0))
            record(card, pair[0])
            kernel(grid, block or params.threads, smem, *args, wait=False)
            record(card, pair[1])
            taken.append(elapsed_seconds(card, pair))
        self.seconds.append(statistics.median(taken))
        for a, values in saved:
            card.write(a.pointer, values)

    _flush: DeviceArray | None = None


def _name(params: KernelParams) -> str:
    return f"{params.template} {params.label}"


def check(lab: CardLab, cases: Sequence[tuple[KernelParams, Shape]], seed: int, until: float) -> Iterator[Result]:
    """Cases that the card's target can run; stops at the time `until` (monotonic), and says so by yielding fewer."""
    for params, shape in cases:
        if params.rejects(lab.emulator.target) is not None:
            continue
        if time.monotonic() > until:
            return
        yield Result(_name(params), shape, _run(lab, params, shape, seed))


def timed(lab: TimingLab, cases: Sequence[Timed], seed: int, until: float) -> Iterator[Result]:
    for case in cases:
        if case.params.rejects(lab.emulator.target) is not None:
            continue
        if time.monotonic() > until:
            return
        lab.seconds, lab.bytes = [], 0
        error = _run(lab, case.params, case.shape, seed)
        yield Result(_name(case.params), case.shape, error, tuple(lab.seconds), lab.bytes, case.flops)


def _run(lab: CardLab, params: KernelParams, shape: Shape, seed: int) -> str:
    """What is wrong; a wrong result ends nothing, an error of the driver ends the process's context, and the run."""
    try:
        lab.run(params, shape, Schedule(Mode.FORWARD), seed)
    except AssertionError as error:
        return str(error)
    return ""


def one_of_each() -> list[tuple[KernelParams, Shape]]:
    """The first small case of every template: what the emulator can do in seconds."""
    return list({p.template: (p, shape) for p, shape in reversed(quick())}.values())
