"""The long matrix (`make soak`): every variant of every kernel at every shape under the race detector in
three schedules, then the mutants.

    python -m tests.cuda.soak [--seed N] [--skip-mutants]

prints progress, and exits 1 when a case fails or a mutant survives.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from llmc.emulator.session import CudaError, Mode, Schedule
from tests.cuda.harness import Lab
from tests.cuda.kernels.references import Wrong
from tests.cuda.kernels.shapes import full, quick

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip-mutants", action="store_true")
    args = parser.parse_args()
    lab, start, runs, failures = Lab(), time.monotonic(), 0, 0
    schedules = (Schedule(Mode.FORWARD), Schedule(Mode.REVERSE), Schedule(Mode.RANDOM, args.seed))
    for number, (params, shape) in enumerate([*quick(), *full()]):
        for schedule in schedules:
            runs += 1
            try:
                lab.run(params, shape, schedule, seed=args.seed)
            except (Wrong, CudaError) as error:
                failures += 1
                print(f"FAILED {params} {shape} {schedule}: {error}", flush=True)
        if number % 50 == 49:
            print(f"{runs} runs, {failures} failures, {time.monotonic() - start:.0f} s", flush=True)
    print(f"matrix: {runs} runs, {failures} failures, {time.monotonic() - start:.0f} s")
    if args.skip_mutants:
        return bool(failures)
    mutants = subprocess.run([sys.executable, "-m", "tests.cuda.mutation.mutate"], cwd=ROOT).returncode
    return bool(failures or mutants)


if __name__ == "__main__":
    sys.exit(main())
