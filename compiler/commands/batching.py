"""`llmc batch`, from the command line's words to the files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from llmc.compiler.commands.emulation import emulate as become
from llmc.compiler.commands.refusal import refuse
from llmc.runtime.errors import RuntimeFailure
from llmc.runtime.step.limits import LoadOptions
from llmc.serve.options import ServeOptions

EXIT_STOPPED = 1
EXIT_INTERRUPTED = 130


def run_batch(
    context: click.Context,
    engine: str,
    files: tuple[Path, Path],
    emulate: bool,
    emulate_gpu: str | None,
    device: str | None,
    load: dict[str, Any],
) -> None:
    """Ends the process: 0 done, 1 stopped on the way, 2 with a line on stderr if it cannot begin."""
    try:
        ((name, folder),) = ServeOptions([engine]).named().items()
        if emulate or emulate_gpu is not None:
            become(context, folder, emulate_gpu)
        from llmc.serve.batch.failure import BatchRefused, BatchStopped
        from llmc.serve.batch.run import BatchOptions, batch
    except (RuntimeFailure, OSError, ModuleNotFoundError) as error:
        sys.exit(refuse(error))
    try:
        batch(BatchOptions(name, folder, *files, device, LoadOptions(**load)), Console(stderr=True))
    except (BatchRefused, RuntimeFailure, OSError) as error:
        sys.exit(refuse(error))
    except BatchStopped as error:
        refuse(error)
        sys.exit(EXIT_STOPPED)
    except KeyboardInterrupt:
        refuse(RuntimeFailure("stopped; the same command goes on from here"))
        sys.exit(EXIT_INTERRUPTED)
