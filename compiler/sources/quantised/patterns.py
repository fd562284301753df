"""Which modules a checkpoint's lists mean: those left as floats, those of a group of settings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from llmc.compiler.sources.quantised.stated import Stated

_LISTS = (
    "modules_to_not_convert",  # AWQ, fp8, FBGEMM, MXFP4, torchao, bitsandbytes
    "llm_int8_skip_modules",  # bitsandbytes
    "skip_modules",  # HQQ
    "ignore",  # compressed-tensors, ModelOpt
    "ignored_layers",  # vLLM's fp8
    "exclude_modules",  # ModelOpt
)


def left_as_floats(stated: Stated) -> tuple[str, ...]:
    """What the settings' lists name. SourceError for a list that is none."""
    found: list[str] = []
    for key in _LISTS:
        names = stated.get(key, default=[])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise stated.refusal(f"{key} is {names!r}, expected a list of names")
        found += names
    return tuple(found)


def named_by(path: str, names: Iterable[str]) -> str | None:
    """The first of the names that means the module: its path, a part of it between dots that begins or ends it, a
    pattern with *, or, after "re:", a regular expression from its beginning."""
    return next((name for name in names if _means(name, path)), None)


def _means(name: str, path: str) -> bool:
    if name.startswith("re:"):
        return re.match(name[3:], path) is not None
    if "*" in name:
        return fnmatchcase(path, name)
    return f".{path}.".startswith(f".{name}.") or f".{path}.".endswith(f".{name}.")
