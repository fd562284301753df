"""Compiles a C++ file of this folder over the kernels' own headers, for this machine, and loads it."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from llmc.codegen.cpu.formats import linear_type
from llmc.codegen.cpu.target import CpuTarget
from llmc.codegen.cpu.toolchain import compile_library
from llmc.ir.formats import Scheme


def load_native(source: str, target: CpuTarget, schemes: Sequence[Scheme] = ()) -> ctypes.CDLL:
    """The compiled `source` (a file beside this one), with linears in `schemes`, numbered. Raises ToolchainError."""
    here = Path(__file__).parent
    texts = {p.name: p.read_text() for p in files("llmc.templates.cpu").iterdir() if p.name.endswith(".h")}
    texts |= {name: (here / name).read_text() for name in ("timed.h", source)}
    formats = " ".join(f"FORMAT({i}, {linear_type(scheme)})" for i, scheme in enumerate(schemes))
    texts["kernel_formats.h"] = f"#pragma once\n#define LLMC_TIMED_FORMATS {formats}\n"
    with tempfile.TemporaryDirectory(prefix="llmc-bench-") as folder:
        library = Path(folder) / "native.so"
        compile_library(texts, target, library)
        return ctypes.CDLL(str(library))
