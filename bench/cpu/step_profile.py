"""Where a step's time goes, kernel by kernel: python bench/cpu/step_profile.py ENGINE [--batch N] [--prefill]

Decode steps after prompts of 128 tokens, or steps that prefill 512. Each kernel's time is the mean over the threads and
the median over the steps; kernels of the same role in different layers are added up. --cpu-time counts the CPU time of
each thread instead, for a machine that others use as well.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout's bench and tests

from bench.cpu.marked_engine import Mark, MarkedEngine
from bench.cpu.workload import DECODE, PREFILL, Phase, Workload, prompts

Nanoseconds = npt.NDArray[np.int32]


def decode_steps(marked: MarkedEngine, workload: Workload, steps: int) -> tuple[list[Nanoseconds], list[float]]:
    engine = marked.engine
    vocab = engine.manifest.model.num_valid_tokens
    handles = [
        engine.submit(p, latency="batch", temperature=0.0, max_tokens=2 * steps + 8, ignore_eos=True)
        for p in prompts(vocab, workload, 1)
    ]
    for handle in handles:
        next(iter(handle))
    found = _timed(marked, lambda: engine.step(), steps)
    for handle in handles:
        handle.cancel()
    return found


def prefill_steps(marked: MarkedEngine, workload: Workload, steps: int) -> tuple[list[Nanoseconds], list[float]]:
    engine = marked.engine
    vocab = engine.manifest.model.num_valid_tokens
    ids = [prompts(vocab, workload, seed)[0] for seed in range(steps)]
    return _timed(marked, lambda: engine.generate([ids.pop()], temperature=0.0, max_tokens=1), steps)


def _timed(marked: MarkedEngine, step: Callable[[], object], steps: int) -> tuple[list[Nanoseconds], list[float]]:
    marks, walls = [], []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        walls.append(time.perf_counter() - begin)
        marks.append(marked.take())
    return marks, walls


def report(marks: list[Mark], nanoseconds: Nanoseconds, workload: Workload) -> float:
    """Prints the table; `nanoseconds` [steps, threads, 2, marks]. Returns microseconds of all kernels and barriers."""
    prefill = workload.phase is Phase.PREFILL
    entry = "prefill" if prefill else "decode"
    tokens = workload.batch * (workload.prompt_len if prefill else 1)
    micros = np.median(nanoseconds.mean(axis=1), axis=0) / 1e3  # [2, marks]
    roles: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, mark in enumerate(marks):
        if mark.entry == entry:
            roles[mark.kernel, mark.role].append(i)
    inside = sum(float(micros[:, i].sum()) for of_role in roles.values() for i in of_role)
    print(f"{'kernel':15} {'role':58} calls  kernel us  barrier us  share  rate")
    for (kernel, role), of_role in sorted(roles.items(), key=lambda item: -float(micros[:, item[1]].sum())):
        busy, waited = (float(part) for part in micros[:, of_role].sum(axis=1))
        rate = ""
        if parameters := sum(marks[i].parameters * (tokens if marks[i].per_token else workload.batch) for i in of_role):
            operations, size = 2 * parameters, sum(marks[i].weight_bytes for i in of_role)
            value = operations if prefill else size
            rate = f"{value / (busy + waited) / 1e3:6.1f} {'GFLOP/s' if prefill else 'GB/s'}"
        shown = role if len(role) <= 58 else f"{role[:55]}..."
        share = (busy + waited) / inside
        print(f"{kernel:15} {shown:58} {len(of_role):5} {busy:10.1f} {waited:11.1f} {share:6.1%}  {rate}")
    print(f"kernels and barriers: {inside:.0f} us")
    return inside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--prefill", action="store_true")
    parser.add_argument("--batch", type=int, default=1, help="sequences, of decode steps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, help="[default: 100 of decode, 20 of prefill]")
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    marked = MarkedEngine(args.engine, args.threads, args.cpu_time)
    workload = PREFILL if args.prefill else Workload(Phase.DECODE, args.batch, DECODE.prompt_len, DECODE.new_tokens)
    run, steps = (prefill_steps, args.steps or 20) if args.prefill else (decode_steps, args.steps or 100)
    taken, walls = run(marked, workload, steps)
    print(f"{args.engine.name}: {workload.name}, {steps} steps, {args.threads} threads, ", end="")
    print(f"{'CPU time, ' if args.cpu_time else ''}load average {os.getloadavg()[0]:.1f}")
    inside = report(marked.marks, np.stack(taken), workload)
    if not args.cpu_time:
        whole = statistics.median(walls) * 1e6
        print(f"step: {whole:.0f} us, {whole - inside:.0f} us of them around the kernels and barriers")
    marked.engine.close()


if __name__ == "__main__":
    main()
