"""`llmc serve`, from the command line's words to the server."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import click

from llmc.compiler.commands.emulation import emulate as become
from llmc.compiler.commands.refusal import refuse
from llmc.runtime.errors import RuntimeFailure
from llmc.runtime.step.limits import LoadOptions
from llmc.runtime.step.scheduling import SchedulingOptions
from llmc.serve.options import ServeOptions

_LOAD = ("max_batch", "max_seq_len", "max_tokens", "kv_memory", "threads")


def serve_engines(context: click.Context, emulate: bool, emulate_gpu: str | None, given: dict[str, Any]) -> None:
    """Ends the process: 0 after a signal, 1 if the engines died, 2 with a line on stderr if it cannot begin."""
    try:
        options = _options(given)
        if emulate or emulate_gpu is not None:
            if len(options.engines) > 1:
                raise click.UsageError("--emulate serves one engine")
            (folder,) = options.named().values()
            become(context, folder, emulate_gpu)
        from llmc.serve.run import serve

        sys.exit(serve(options))
    except (RuntimeFailure, OSError, ValueError, ModuleNotFoundError) as error:
        sys.exit(refuse(error))


def _options(given: dict[str, Any]) -> ServeOptions:
    """Raises InvalidParameter."""
    load = LoadOptions(**{name: given.pop(name) for name in _LOAD})
    if (queue := given.pop("queue")) is not None:
        load = replace(load, scheduling=SchedulingOptions(max_queued=queue))
    return ServeOptions(load=load, **given)
