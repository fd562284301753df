"""Time to choose one row's token on one core: python bench/cpu/sampling_speed.py [--target T].

Logits of normal distribution (spread 3) with twenty likely tokens up to 18 above the rest, as language models make
them, and without ("flat"); every row has logits and a position of its own. Median, and the slowest of ten in a hundred.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout's bench

from bench.cpu.native import load_native
from llmc.codegen.cpu.target import cpu_target
from llmc.runtime.step.row_sampling import SAMPLING_RECORD

VOCABULARIES = (49152, 151936)
CASES: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "T=1": {},
    "T=0.7": {"temperature": 0.7},
    "top_k 50": {"top_k": 50},
    "top_p 0.9": {"top_p": 0.9},
    "top_p 0.9999999": {"top_p": 0.9999999},
    "min_p 0.05": {"min_p": 0.05},
}


def rows_of_logits(rows: int, valid: int, likely: int) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(valid)
    logits = 3 * rng.standard_normal((rows, valid)).astype(np.float32)
    for row in logits:
        row[rng.integers(0, valid, likely)] += np.linspace(18, 4, likely, dtype=np.float32)
    return logits


def seconds_per_row(
    lib: ctypes.CDLL, logits: npt.NDArray[np.float32], fields: dict[str, float]
) -> npt.NDArray[np.float64]:
    rows, valid = logits.shape
    sampling = np.zeros(rows, SAMPLING_RECORD)
    for name, value in {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0, **fields}.items():
        sampling[name] = value
    sampling["seed"], sampling["position"] = 7, np.arange(rows)
    times = np.zeros(rows)
    given = [ctypes.c_void_p(a.ctypes.data) for a in (sampling, logits)]
    assert not lib.time_sample(*given, valid, rows, ctypes.c_void_p(times.ctypes.data))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--rows", type=int, default=100)
    args = parser.parse_args()
    target = cpu_target(args.target)
    lib = load_native("kernels.cpp", target)
    print(f"target {target.mcpu}, one thread, {args.rows} rows: us per row, median (90 %)")
    for valid in VOCABULARIES:
        for kind, likely in (("likely tokens", 20), ("flat", 0)):
            logits = rows_of_logits(args.rows, valid, likely)
            cells = []
            for name, fields in CASES.items():
                middle, slow = np.quantile(seconds_per_row(lib, logits, fields) * 1e6, (0.5, 0.9))
                cells.append(f"{name} {middle:.0f} ({slow:.0f})")
            print(f"V={valid} {kind}: " + ", ".join(cells), flush=True)


if __name__ == "__main__":
    main()
