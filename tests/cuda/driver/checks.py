"""What the programs share that check the driver API through unmodified cuda-python: each takes FOLDER and prints one
JSON line per check."""

from __future__ import annotations

import ctypes
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from tests.cuda.driver.cuda_calls import CallFailed, context, download, load, ok

FOLDER = Path(sys.argv[1])
R = cu.CUresult
ONES = np.ones(64, np.float32)


def raises(code: Any, f: Callable[..., Any], *args: Any) -> str:
    try:
        f(*args)
    except CallFailed as e:
        assert e.code == code, f"expected {code.name}, got {e}"
        return str(e)
    raise AssertionError(f"expected {code.name}, the call succeeded")


def forget_error() -> None:
    ctypes.CDLL("libcuda.so.1").llmcEmuReset()


def kernel(name: str) -> Any:
    return load(FOLDER, "driver_program", name)


def stream() -> Any:
    return ok(cu.cuStreamCreate(1))


def value(p: int) -> float:
    return float(download(p, (64,), np.float32)[0])


def run(checks: Sequence[Callable[[], None]]) -> None:
    context()
    for check in checks:
        try:
            check()
            print(json.dumps({"check": check.__name__, "problem": ""}), flush=True)
        except Exception:
            print(json.dumps({"check": check.__name__, "problem": traceback.format_exc()}), flush=True)
            forget_error()
