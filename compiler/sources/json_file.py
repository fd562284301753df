"""JSON objects from files other people wrote."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from llmc.compiler.sources.errors import SourceError


def _constant(path: Path, name: str) -> float:
    """Configs of models with state spaces have an Infinity; a NaN is nobody's number."""
    if name == "NaN":
        raise SourceError(f"{path}: NaN is not a JSON number")
    return float(name)


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in `path`; SourceError with line and column where it is not one."""
    try:
        value = json.loads(path.read_bytes(), parse_constant=partial(_constant, path))
    except FileNotFoundError:
        raise SourceError(f"{path}: no such file") from None
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise SourceError(f"{path}: malformed JSON at line {error.lineno} column {error.colno}: {error.msg}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{path}: malformed JSON: {type(error).__name__}") from None
    if not isinstance(value, dict):
        raise SourceError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value
