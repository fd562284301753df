"""What the programs share that check the CUDA device on toy engines: each takes FOLDER CHECK... and prints
one JSON line per check.

FOLDER holds the engines that test_device.py wrote, by name.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from llmc.runtime import Engine
from tests.cuda.device.toy_engine import VALID, Model

FOLDER = Path(sys.argv[1])
MODEL = Model.random()
ASK: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


def emulator() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    library.llmcEmuLiveAllocations.restype = library.llmcEmuKernelsRun.restype = ctypes.c_ulonglong
    return library


def forget_error() -> None:
    emulator().llmcEmuReset()


@contextmanager
def loaded(name: str, **options: Any) -> Iterator[Engine]:
    with Engine.load(FOLDER / name, **options) as engine:
        yield engine


def prompts(count: int, seed: int = 1, longest: int = 20) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VALID, rng.integers(1, longest)).tolist() for _ in range(count)]


def refusal(kind: type[Exception], action: Any) -> str:
    try:
        action()
    except kind as error:
        assert "\n" not in str(error), error
        return str(error)
    raise AssertionError(f"expected {kind.__name__}")


def run(checks: Mapping[str, Any]) -> None:
    """Those that the command line names, out of a program's functions."""
    for name in sys.argv[2:]:
        try:
            checks[name]()
            print(json.dumps({"check": name, "problem": ""}), flush=True)
        except Exception:
            print(json.dumps({"check": name, "problem": traceback.format_exc()}), flush=True)
            forget_error()
    if os.environ.get("LLMC_EMU_CHECK") == "race":
        assert emulator().llmcEmuKernelsRun() or sys.argv[2:] == ["only_the_gpu_it_was_built_for"]
