"""`llmc build` on the command line: its stages, how far they are, one line for what went wrong."""

from __future__ import annotations

import json
import time
from typing import Any

from rich.console import Console

from llmc.codegen.cpu.target import TargetError
from llmc.codegen.cpu.toolchain import ToolchainError
from llmc.compiler.build_options import BuildError, BuildOptions, check_options
from llmc.compiler.commands.progress_console import shown
from llmc.compiler.commands.refusal import refuse
from llmc.compiler.roofline.text import size
from llmc.compiler.sources.errors import SourceError
from llmc.ir.graph import IRError
from llmc.runtime.artifact.artifact import WEIGHTS, read_file
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
    took, weights = time.monotonic() - loaded, size(manifest.files[WEIGHTS].bytes)
    model = json.loads(read_file(options.out, manifest, "report.json"))["model"]
    for notice in _notices(model):
        console.print(f"note: {notice}", soft_wrap=True)
    made = f" made of {model['stored_as']}" if model["stored_as"] else ""
    console.print(
        f"{options.out}: {manifest.model.name}, {weights} of {manifest.model.dtype} weights{made}, "
        f"built in {took:.1f} s (+ {loaded - started:.1f} s of imports)",
        soft_wrap=True,
    )
    return 0


def _notices(model: dict[str, Any]) -> list[str]:
    """What the build's report says of disagreements in the model's files, and of settings that nobody reads."""
    unread = model["unread_generation_settings"]
    return [*model["notices"], *([f"generation settings that nobody reads: {', '.join(unread)}"] if unread else [])]
