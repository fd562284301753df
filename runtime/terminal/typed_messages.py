"""Messages as people type them: a line; lines that end with a backslash, and the next one; a block in triple quotes."""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from llmc.runtime.errors import RequestError

ReadLine = Callable[[str], str]
"""Gives the line typed after a prompt, without its end; raises EOFError at the end of all, as `input` does."""

QUOTES = '"""'
MORE = "... "


@dataclass(frozen=True)
class Typed:
    """`is_command`: its first line begins with a slash, outside quotes."""

    text: str
    is_command: bool


def read_message(read_line: ReadLine, prompt: str, more: str) -> Typed:
    """What is typed next. Raises EOFError, and what `read_line` raises."""
    line = read_line(prompt)
    is_command = line.startswith("/")
    head, quotes, rest = line.partition(QUOTES)
    if quotes and (is_command or not head.strip()):
        return Typed(head + _block(rest, read_line, more), is_command)
    while line.endswith("\\"):
        line = line[:-1] + "\n" + read_line(more)
    return Typed(line, is_command)


def _block(first: str, read_line: ReadLine, more: str) -> str:
    """The lines up to one that ends in quotes; the line breaks next to the quotes are no part of it."""
    lines = [first]
    while not lines[-1].rstrip().endswith(QUOTES):
        lines.append(read_line(more))
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines).removeprefix("\n").removesuffix("\n")


def terminal_reader() -> ReadLine:
    """Lines from this process's terminal, edited where Python has readline; pasted lines come as one message."""
    with contextlib.suppress(ImportError):
        readline = import_module("readline")
        if "libedit" not in (readline.__doc__ or ""):
            readline.parse_and_bind("set enable-bracketed-paste on")

    def read_line(prompt: str) -> str:
        if sys.stdout.isatty():
            return input(prompt)
        print(prompt, end="", file=sys.stderr, flush=True)  # stdout is for answers alone
        return input()

    return read_line


def read_text(path: Path) -> str:
    """A text file without its last line break. Raises OSError, RequestError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        error.filename = str(path)  # which an error of reading, unlike one of opening, lacks
        raise
    return text_of(data, str(path))


def text_of(data: bytes, name: str) -> str:
    """Raises RequestError, with the `name` of what holds the bytes, where they are no text."""
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise RequestError(f"{name}: not a text in UTF-8: {error.reason} at byte {error.start}") from None
