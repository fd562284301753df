"""How the command line says no: one line on stderr, and the exit code for it."""

from __future__ import annotations

import sys

EXIT_REFUSED = 2


def refuse(error: Exception) -> int:
    """Print an error that the user can do something about; returns the exit code."""
    print(f"llmc: {' '.join(_text(error).split())}", file=sys.stderr)
    return EXIT_REFUSED


def _text(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed, and compiling and verifying need it: pip install 'llmc[build]'"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
