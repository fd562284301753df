"""`llmc build` on the command line: its stages, how far they are, one line for what went wrong."""

from __future__ import annotations

import time

from rich.console import Console

from llmc.codegen.cpu.target import TargetError
from llmc.codegen.cpu.toolchain import ToolchainError
from llmc.compiler.build_options import BuildError, BuildOptions, check_options
from llmc.compiler.commands.progress_console import shown
from llmc.compiler.commands.refusal import refuse
from llmc.compiler.roofline.text import size
from llmc.compiler.sources.errors import SourceError
from llmc.ir.graph import IRError
from llmc.runtime.artifact.artifact import WEIGHTS
from llmc.runtime.errors import RuntimeFailure


def build_with_progress(options: BuildOptions) -> int:
    """Build, showing progress on stderr; returns the exit code."""
    console = Console(stderr=True, markup=False, highlight=False)
    started = time.monotonic()
    try:
        check_options(options)
        with shown(console) as progress:
            progress.stage("loading torch and transformers")
            from llmc.compiler.build import build
            from llmc.compiler.capture.errors import CaptureError

            loaded = time.monotonic()
            try:
                manifest = build(options, progress)
            except CaptureError as error:
                raise BuildError(str(error)) from error
    except (IRError, BuildError, SourceError, ToolchainError, TargetError, RuntimeFailure, OSError) as error:
        return refuse(error)
    took, weights = time.monotonic() - loaded, manifest.files[WEIGHTS].bytes
    console.print(
        f"{options.out}: {size(weights)} of weights, built in {took:.1f} s (+ {loaded - started:.1f} s of imports)"
    )
    return 0
