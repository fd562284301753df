"""The CPU's sampling kernel behind a Python function: what the CUDA kernel must agree with, bit for bit."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from llmc.codegen.cpu.target import cpu_target
from llmc.codegen.cpu.toolchain import Toolchain, ToolchainError, compile_library, find_toolchain
from llmc.emulator.cache import cache_dir
from llmc.runtime.artifact.manifest import MAX_LOGPROBS
from llmc.runtime.step.row_sampling import SAMPLING_RECORD

HARNESS = Path(__file__).resolve().parent.parent / "kernels"


@dataclass(frozen=True)
class Sampled:
    """tokens i32[R], logprob f32[R], top_ids i32 and top_logprobs f32[R, MAX_LOGPROBS]; -7 where a kernel does not
    write."""

    tokens: np.ndarray
    logprob: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray

    @staticmethod
    def blank(rows: int) -> Sampled:
        wide = (rows, MAX_LOGPROBS)
        return Sampled(
            np.full(rows, -7, np.int32),
            np.full(rows, -7, np.float32),
            np.full(wide, -7, np.int32),
            np.full(wide, -7, np.float32),
        )


def _toolchain() -> Toolchain:
    """The pinned one; a machine with a GPU and little else may have g++ alone."""
    try:
        return find_toolchain({})
    except ToolchainError:
        return find_toolchain({"CXX": os.environ.get("CXX", "g++")})


@cache
def _library() -> ctypes.CDLL:
    """Built for this machine's best target (all with fused multiply-adds give the same bits), kept by content."""
    sources = {p.name: p.read_text() for p in files("llmc.templates.cpu").iterdir() if p.name.endswith(".h")}
    sources |= {name: (HARNESS / name).read_text() for name in ("harness.h", "harness_sample.cpp")}
    target, toolchain = cpu_target("cpu"), _toolchain()
    key = hashlib.sha256(repr((sorted(sources.items()), target, toolchain)).encode()).hexdigest()[:24]
    final = cache_dir() / "cpu" / f"sample-{key}.so"
    if not final.exists():
        private = final.with_suffix(f".{os.getpid()}")
        compile_library(sources, target, private, toolchain)
        os.replace(private, final)
    return ctypes.CDLL(str(final))


def cpu_sample(logits: np.ndarray, sampling: Sequence[np.void], valid: int) -> Sampled:
    """logits f32[R, >= valid]."""
    rows, stride = logits.shape
    out = Sampled.blank(rows)
    records = np.array(sampling, SAMPLING_RECORD)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (records, logits)]
    results = [ctypes.c_void_p(a.ctypes.data) for a in (out.tokens, out.logprob, out.top_ids, out.top_logprobs)]
    failed = _library().run_sample(*pointers, rows, ctypes.c_int64(stride), valid, *results, 1)
    assert not failed
    return out
