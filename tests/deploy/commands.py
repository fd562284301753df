"""What files of deploy/ ask `llmc serve` for, as the command itself reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmc.compiler.commands.cli import main


def served(arguments: Sequence[str]) -> dict[str, Any]:
    """The options of `llmc serve ...`, without running it. Raises click.UsageError."""
    command = main.commands[arguments[0]]
    assert arguments[0] == "serve"
    return dict(command.make_context("serve", list(arguments[1:])).params)
