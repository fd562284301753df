"""Where a step's time goes, kernel by kernel: python bench/cpu/step_profile.py ENGINE [--batch N] [--prefill]

As `llmc inspect --profile`, which decodes after prompts of 128 tokens; here also steps that prefill. Each kernel's time
is the mean over the threads and the median over the steps; kernels of the same role in different layers are added up.
--cpu-time counts the CPU time of each thread instead, for a machine that others use as well.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout's bench and tests

from rich.console import Console

from bench.cpu.workload import DECODE, PREFILL
from llmc.compiler.commands.profile_console import print_profile
from llmc.compiler.profile.marked_engine import MarkedEngine
from llmc.compiler.profile.measure import profile_decode, profile_prefill


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--prefill", action="store_true")
    parser.add_argument("--batch", type=int, default=1, help="sequences, of decode steps")
    parser.add_argument("--length", type=int, help="tokens of a prompt [default: 128, to prefill 512]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, help="[default: 100 of decode, 20 of prefill]")
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    length = args.length or (PREFILL if args.prefill else DECODE).prompt_len
    steps = args.steps or (20 if args.prefill else 100)
    with MarkedEngine(args.engine, args.threads, length + 2 * steps + 16, args.cpu_time) as marked:
        if args.prefill:
            profile = profile_prefill(marked, length, steps)
        else:
            profile = profile_decode(marked, args.batch, length, steps)
    clock = "CPU time, " if args.cpu_time else ""
    print(f"{args.engine.name}: {clock}load average {os.getloadavg()[0]:.1f}")
    print_profile(Console(width=160), profile)


if __name__ == "__main__":
    main()
