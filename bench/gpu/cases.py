"""Every kernel of the catalog: correct on fresh inputs, then timed on large ones.

Both use the runners of tests/cuda, which compute in float64 on the host what they expect: a kernel that is tested is
checked here without further work; to be timed it needs a line in TIMED. (A module `kernels` on the path would be taken
by transformers for the package of that name.)
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import rows_examples
from card import CardLab, elapsed_seconds, events, record
from harness import Shape
from libraries import Library
from linear_shapes import S, mma, wgmma
from shapes import quick

from llmc.codegen.cuda.attention.layer import Layer
from llmc.codegen.cuda.attention.params import CombineAttentionParams, DecodeAttentionParams, PrefillAttentionParams
from llmc.codegen.cuda.kernel import KernelParams
from llmc.codegen.cuda.linear.params import LinearParams
from llmc.codegen.cuda.sample.params import SampleParams
from llmc.emulator.session import Argument, DeviceArray, Mode, Schedule
from llmc.ir.graph import Graph
from llmc.ir.types import DType

FLUSHES = 6  # so many that Python has queued all that is timed before the card comes to it: gaps would count


@dataclass(frozen=True)
class Timed:
    """A kernel and the shape it is timed at. flops: of its matrix products, 0 where memory is all that counts.
    `launches`: how many of its runner's launches, from the last, make up the operation."""

    params: KernelParams
    shape: Shape
    flops: int = 0
    launches: int = 1


def _linear(params: LinearParams, tokens: int) -> Timed:
    shape = params.shape
    return Timed(params, {"epilogue": "plain", "T": tokens, "rows": tokens}, 2 * tokens * shape.width * shape.k)


def _rows(body: Graph, rows: int) -> Timed:
    return Timed(rows_examples.kernel(body), {"rows": rows})


# Llama-3.1-8B's sizes.
_LAYER = Layer(DType.BF16, 32, 8, 128, 128, 128)
_FOUR = {"contexts": (4096,) * 4, "rows": (1,) * 4}
TIMED: tuple[Timed, ...] = (
    _linear(mma("plain", 4096, 4096, 512, 64, 8, S, 4), 8),
    _linear(mma("plain", 4096, 4096, 512, 128, 128, S, 3), 1024),
    _linear(wgmma("plain", 4096, 4096, 512, 128, 128, S, 4), 1024),
    # splits and combine; a token's scores and values are 2 * (128 + 128) operations a key
    Timed(DecodeAttentionParams(_LAYER), _FOUR, 4 * 4096 * 32 * 512, launches=2),
    Timed(CombineAttentionParams(_LAYER, DType.BF16), _FOUR),
    Timed(
        PrefillAttentionParams(_LAYER, DType.BF16),
        {"contexts": (1024,), "rows": (1024,)},
        1024 * 1025 // 2 * 32 * 512,
    ),
    _rows(rows_examples.rms_norm(4096), 8),
    _rows(rows_examples.rms_norm(4096), 1024),
    _rows(rows_examples.rms_norm_residual(4096), 8),
    _rows(rows_examples.rms_norm_residual(4096), 1024),
    _rows(rows_examples.queries_keys_values(32, 8, 128, norms=False), 8),
    _rows(rows_examples.queries_keys_values(32, 8, 128, norms=False), 64),
    Timed(SampleParams(128256, 128256), {"rows": 1, "behind": 0}),
    Timed(SampleParams(128256, 128256), {"rows": 64, "behind": 0}),
)


@dataclass(frozen=True)
class Result:
    """One kernel at one shape. error: empty where the result is right. seconds: median of a launch with cold caches,
    one for each launch the operation takes. bytes: of the case's arrays, each counted once. `library_seconds`: median
    of what `library` names doing the same, each of its runs between two of ours; None where there is none."""

    kernel: str
    shape: Shape
    error: str
    seconds: tuple[float, ...] = ()
    bytes: int = 0
    flops: int = 0
    library: str = ""
    library_seconds: float | None = None


@dataclass
class TimingLab(CardLab):
    """Times each launch of a runner, `repeats` times, and then gives the arrays back the values of the first launch.
    Before each, `flush_bytes` are written, to leave nothing else in the L2 cache. `library`, which queues a library's
    work on the default stream, takes turns with them."""

    repeats: int = 20
    flush_bytes: int = 0
    seconds: list[float] = field(default_factory=list)
    bytes: int = 0
    library: Callable[[], object] | None = None
    library_seconds: list[float] = field(default_factory=list)

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

        def ours() -> None:
            kernel(grid, block or params.threads, smem, *args, wait=False)

        taken, theirs = [], []
        for _ in range(self.repeats):
            taken.append(self._time(ours))
            if self.library is not None:
                theirs.append(self._time(self.library))
        self.seconds.append(statistics.median(taken))
        if theirs:
            self.library_seconds.append(statistics.median(theirs))
        for a, values in saved:
            card.write(a.pointer, values)

    def _time(self, launch: Callable[[], object]) -> float:
        """Seconds on the default stream, behind writes over the L2 cache."""
        card = self.emulator
        if self._flush is None:
            self._flush = card.empty((self.flush_bytes // 4,), np.uint32)
            self._events = events(card)
        words = ctypes.c_size_t(self.flush_bytes // 4)
        for _ in range(FLUSHES):
            card.call("cuMemsetD32Async", ctypes.c_uint64(self._flush.pointer), ctypes.c_uint(0), words, None)
        record(card, self._events[0])
        launch()
        record(card, self._events[1])
        return elapsed_seconds(card, self._events)

    _events: tuple[ctypes.c_void_p, ctypes.c_void_p] = field(init=False)
    _flush: DeviceArray | None = None


def named(cases: Iterable[Timed]) -> dict[str, Timed]:
    """Cases by kernel and shape; those that say the same of both (rows kernels of other bodies) are numbered."""
    found: dict[str, Timed] = {}
    for case in cases:
        shape = " ".join(f"{k}={_short(v)}" for k, v in case.shape.items())
        name = base = f"{case.params.template} {case.params.label} {shape}"
        count = 1
        while name in found:
            count += 1
            name = f"{base} #{count}"
        found[name] = case
    return found


def _short(value: object) -> str:
    """A batch of equal sequences as `4 x 4096`."""
    if isinstance(value, tuple) and len(value) > 2 and len(set(value)) == 1:
        return f"{len(value)}x{value[0]}"
    return str(value).replace(" ", "")


def launched_for(params: KernelParams) -> tuple[KernelParams, ...]:
    """The kernels that its runner launches: splits of attention are looked at when they are joined."""
    if isinstance(params, DecodeAttentionParams):
        return params, *(CombineAttentionParams(params.layer, d) for d in (DType.F32, params.layer.dtype))
    return (params,)


def ours(params: KernelParams, lab: CardLab) -> bool:
    """Whether the card's target can run it."""
    return params.rejects(lab.emulator.target) is None


def check(lab: CardLab, params: KernelParams, shape: Shape, seed: int) -> str:
    """What is wrong with a case's result; an error of the driver ends the process's context, and is raised."""
    try:
        lab.run(params, shape, Schedule(Mode.FORWARD), seed)
    except AssertionError as error:
        return str(error) or type(error).__name__
    return ""


def timed(lab: TimingLab, case: Timed, seed: int, library: Library | None) -> Result:
    """A case, checked and timed."""
    lab.seconds, lab.bytes, lab.library_seconds = [], 0, []
    lab.library = library.run if library else None
    error = check(lab, case.params, case.shape, seed)
    return Result(
        f"{case.params.template} {case.params.label}",
        case.shape,
        error,
        tuple(lab.seconds[-case.launches :]),
        lab.bytes,
        case.flops,
        library.name if library else "",
        statistics.median(lab.library_seconds) if lab.library_seconds else None,
    )


def checked(tiny: bool) -> list[Timed]:
    """The cases of tests/cuda, or the first small one of every template: what the emulator can do in seconds."""
    cases = quick()
    few = list({p.template: (p, shape) for p, shape in reversed(cases)}.values())
    return [Timed(p, shape) for p, shape in (few if tiny else cases)]
