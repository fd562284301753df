"""How the command line says no: one line on stderr, and the exit code for it."""

from __future__ import annotations

import contextlib
import os
import sys

EXIT_REFUSED = 2
_OF_SERVING = ("uvicorn", "uvloop", "httptools", "orjson", "prometheus_client")


def open_streams() -> None:
    """Give a process that was started without one of the three streams an empty one.

    Otherwise Python has None in its place, and the next file that is opened gets its number.
    """
    for name, flags, mode in (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_WRONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))


def drop_output() -> None:
    """What stdout holds cannot be written: let it go, or Python's own flush at exit would fail once more."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def refuse(error: Exception) -> int:
    """Print an error that the user can do something about; returns the exit code."""
    print(f"llmc: {' '.join(_text(error).split())}", file=sys.stderr)
    return EXIT_REFUSED


def _text(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("opentelemetry"):
        return f"{error.name} is not installed, and --otel needs it: pip install 'llmc[otel]'"
    if isinstance(error, ModuleNotFoundError) and error.name in _OF_SERVING:
        return f"{error.name} is not installed, and serving needs it: pip install 'llmc[serve]'"
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed, and compiling and verifying need it: pip install 'llmc[build]'"
    if isinstance(error, OSError) and error.strerror is not None:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return str(error)
