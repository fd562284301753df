"""A long prompt arrives while others decode: python bench/serving/long_prompt.py ENGINE

Its time to the first token beside that of the prompt alone, and the gaps between the others' tokens meanwhile beside
those before it came: for the classes that the others may be of, and for the curve between them, which is that of the
budget (`slowdown`: how many times as long as one without prompts a step may be).
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout

from bench.cpu.load import LoadWatch
from llmc.runtime import Engine, LatencyTarget, SamplingParams, SchedulingOptions
from llmc.runtime.loop.results import Output


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=max_tokens)


@dataclass
class Reader:
    """When one of the others got its tokens."""

    times: list[float] = field(default_factory=list)

    def __call__(self, output: Output) -> None:
        self.times += [time.perf_counter()] * len(output.token_ids)


@dataclass(frozen=True)
class Found:
    ttft: float
    before: float  # p99 of the gaps, seconds
    during: float
    longest: float
    chunk: float  # tokens of the prompt in a step, in the mean


def gaps(readers: list[Reader], begin: float, end: float) -> list[float]:
    """Between tokens of which the later one came in that time."""
    found = []
    for reader in readers:
        times = np.array(reader.times)
        inside = (times[1:] >= begin) & (times[1:] <= end)
        found += np.diff(times)[inside].tolist()
    return found


def arrival(engine: Engine, args: argparse.Namespace, latency: str, seed: int) -> Found:
    rng, vocab = random.Random(seed), engine.manifest.model.num_valid_tokens

    def prompt(length: int) -> list[int]:
        return [rng.randrange(vocab) for _ in range(length)]

    readers = [Reader() for _ in range(args.others)]
    endless = greedy(engine.core.max_len - 64)
    others = [engine.submit(prompt(64), endless, latency=latency, on_output=reader) for reader in readers]
    while any(len(reader.times) < 32 for reader in readers):
        engine.step()
    quiet = time.perf_counter()
    while any(len(reader.times) < 32 + args.before for reader in readers):
        engine.step()
    came = time.perf_counter()
    long, steps = engine.submit(prompt(args.prompt), greedy(1)), 0
    while long.completion is None:
        engine.step()
        steps += 1
    ended = time.perf_counter()
    for other in others:
        other.cancel()
    during, before = gaps(readers, came, ended), gaps(readers, quiet, came)
    quiet_p99, busy_p99 = (float(np.percentile(values, 99)) if values else 0.0 for values in (before, during))
    return Found(long.completion.timing.ttft, quiet_p99, busy_p99, max(during, default=0.0), args.prompt / steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--prompt", type=int, default=7900)
    parser.add_argument("--others", type=int, default=8)
    parser.add_argument("--before", type=int, default=100, help="tokens of each of them before the prompt comes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slowdowns", type=float, nargs="*", default=[1.25, 1.5, 2, 3, 4, 6, 8, 12])
    args = parser.parse_args()
    watch = LoadWatch.now()
    cases: list[tuple[str, str, dict[str, LatencyTarget]]]
    cases = [(f"class {name}", name, {}) for name in ("interactive", "standard", "batch")]
    for slowdown in args.slowdowns:
        cases.append((f"slowdown {slowdown:g}", "standard", {"standard": LatencyTarget(1e5, 1e5, slowdown)}))
    print(f"{args.engine.name}: a prompt of {args.prompt} while {args.others} decode, {args.threads} threads")
    print("the others        TTFT  x alone  p99 gap before  p99 gap  x before  longest  tokens a step")
    alone = 0.0
    for number, (name, latency, targets) in enumerate(cases):
        options = SchedulingOptions(targets)
        with Engine.load(args.engine, threads=args.threads, scheduling=options, prefix_cache=False) as engine:
            if not alone:
                args_alone = argparse.Namespace(**{**vars(args), "others": 0})
                arrival(engine, args_alone, latency, 1000)  # warm
                alone = arrival(engine, args_alone, latency, 1001).ttft
                print(f"{'nobody':15} {alone:6.2f} s")
            found = arrival(engine, args, latency, number)
        print(
            f"{name:15} {found.ttft:6.2f} s  {found.ttft / alone:6.2f}  {1e3 * found.before:11.1f} ms  "
            f"{1e3 * found.during:6.1f} ms  {found.during / found.before:6.2f}  {1e3 * found.longest:6.1f} ms  "
            f"{found.chunk:6.0f}",
            flush=True,
        )
    load = watch.until(LoadWatch.now())
    print(f"others' cores {load.others:.1f}, stolen {load.stolen:.1f}, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
