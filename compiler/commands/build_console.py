"""`llmc build` on a terminal: stages, a bar for weights, one line for what went wrong."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from llmc.codegen.cpu.target import TargetError
from llmc.codegen.cpu.toolchain import ToolchainError
from llmc.compiler.commands.refusal import refuse
from llmc.runtime.artifact.artifact import WEIGHTS
from llmc.runtime.errors import RuntimeFailure


def build_with_progress(
    model: str,
    out: Path,
    target: str,
    dtype: str,
    max_batch: int,
    max_seq_len: int | None,
    step_tokens: int,
    passes: str,
    dump_ir: Path | None,
    limits: Path | None = None,
) -> int:
    """Build, showing progress on stderr; returns the exit code."""
    console = Console(stderr=True, markup=False)
    started = time.monotonic()
    with _bars(console) as bars:
        progress = _Bars(bars)
        progress.stage("loading transformers")
        from llmc.compiler.build import BuildError, BuildOptions, build
        from llmc.compiler.capture.errors import CaptureError
        from llmc.compiler.sources.errors import SourceError
        from llmc.ir.formats import Scheme
        from llmc.ir.graph import IRError

        loaded = time.monotonic()
        options = BuildOptions(
            model, out, target, Scheme.named(dtype), max_batch, max_seq_len, step_tokens, passes, dump_ir, limits
        )
        try:
            manifest = build(options, progress)
        except (
            SourceError,
            CaptureError,
            IRError,
            BuildError,
            ToolchainError,
            TargetError,
            RuntimeFailure,
            OSError,
        ) as error:
            bars.stop()
            return refuse(error)
    took = time.monotonic() - loaded
    weights = manifest.files[WEIGHTS].bytes / 1e6
    console.print(f"{out}: {weights:.0f} MB of weights, built in {took:.1f} s (+ {loaded - started:.1f} s of imports)")
    return 0


def _bars(console: Console) -> Progress:
    columns = (TextColumn("{task.description:24}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


class _Bars:
    """Each stage is a line; the stage that writes weights has a bar."""

    def __init__(self, bars: Progress) -> None:
        self.bars = bars
        self.task = bars.add_task("starting", total=None)

    def stage(self, text: str) -> None:
        self._finish()
        self.task = self.bars.add_task(text, total=None)

    def weights(self, done: int, total: int) -> None:
        self.bars.update(self.task, completed=done, total=total)

    def _finish(self) -> None:
        done = self.bars.tasks[-1].completed or 1
        self.bars.update(self.task, total=done, completed=done)
