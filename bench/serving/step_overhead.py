"""What a step costs in Python, part by part, with a device that does nothing: python bench/serving/step_overhead.py

Requests of 64..512 prompt tokens answer 256..1024; whoever ends makes room for another, so that as many run all the
time as the row says. Microseconds, median over the steps in which all decode, and the mean over all of them, those with
prompts included.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path
from statistics import mean, median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout

from llmc.runtime.kv.blocks import BlockManager
from llmc.runtime.kv.prefix import PrefixChain, root_of
from llmc.runtime.kv.retention import Retention
from llmc.runtime.loop.commit import Commit
from llmc.runtime.loop.layout import lay_out
from llmc.runtime.loop.request import Ends, Request, TokenHistory
from llmc.runtime.loop.schedule import Scheduler
from llmc.runtime.step.arrays import StepBuffers, StepLimits
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.step.row_sampling import RowSampling

PARTS = ("schedule", "lay out", "computed", "commit")
BLOCK_TOKENS, MAX_TOKENS, MAX_LEN, VOCAB = 32, 512, 8192, 49152


class Loop:
    """The core of an engine, but for its device."""

    def __init__(self, running: int) -> None:
        limits = StepLimits(MAX_TOKENS, running, running, MAX_LEN, BLOCK_TOKENS, 1)
        blocks = BlockManager([Retention(None, BLOCK_TOKENS, MAX_TOKENS)], [running * 64])
        self.scheduler = Scheduler(blocks, running, MAX_TOKENS, MAX_LEN)
        self.step = StepBuffers(limits)
        self.commit = Commit(self.scheduler)
        self.rng = random.Random(running)
        self.arrivals = 0
        self.running = running

    def refill(self) -> None:
        while len(self.scheduler.waiting) + len(self.scheduler.running) < self.running:
            prompt = [self.rng.randrange(VOCAB) for _ in range(self.rng.randint(64, 512))]
            params = SamplingParams(temperature=0.8, seed=self.arrivals)
            history, ends = TokenHistory(prompt), Ends(frozenset({2}), 0, self.rng.randint(256, 1024))
            rows = RowSampling(params, self.arrivals, len(prompt), (2,))
            prefix = PrefixChain(history, root_of(b"bench", "", ""))
            self.scheduler.add(Request(self.arrivals, history, len(prompt), rows, ends, prefix=prefix))
            self.arrivals += 1

    def run(self) -> tuple[bool, list[float]]:
        """A step: whether all decode, and the seconds of each part."""
        marks = [time.perf_counter()]
        batch = self.scheduler.schedule()
        marks.append(time.perf_counter())
        sampled = [chunk.request for chunk in lay_out(batch, self.step)]
        self.scheduler.blocks.take_copies()
        marks.append(time.perf_counter())
        self.step.out_tokens[: len(sampled)] = self.rng.choices(range(3, VOCAB), k=len(sampled))
        before = time.perf_counter()
        self.scheduler.computed(batch, seconds=8e-3 + 2e-5 * batch.num_tokens)
        after = time.perf_counter()
        list(self.commit.decide(list(self.commit.read(self.step, sampled))))
        done = time.perf_counter()
        return batch.decode_only, [marks[1] - marks[0], marks[2] - marks[1], after - before, done - after]


def measure(running: int, steps: int) -> None:
    loop = Loop(running)
    decoding: list[list[float]] = []
    mixed: list[float] = []
    every: list[float] = []
    for step in range(steps + 100):
        loop.refill()
        decode_only, seconds = loop.run()
        if step >= 100:
            every.append(sum(seconds))
            (decoding.append(seconds) if decode_only else mixed.append(sum(seconds)))
    parts = [1e6 * median(part) for part in zip(*decoding, strict=True)]
    whole = 1e6 * median(map(sum, decoding))
    texts = "  ".join(f"{value:8.0f}" for value in [*parts, whole, 1e6 * mean(every)])
    print(f"{running:7}  {texts}  {len(mixed) / len(every):7.0%}  {1e6 * median(mixed) if mixed else 0:8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--profile", type=int, metavar="RUNNING", help="a profile of so many running, instead")
    args = parser.parse_args()
    if args.profile:
        import cProfile

        cProfile.runctx("measure(running, steps)", globals(), {"running": args.profile, "steps": args.steps}, None, 1)
        return
    print(f"microseconds a step; load average {os.getloadavg()[0]:.1f}")
    heads = [*PARTS, "decode", "mean"]
    print("running  " + "  ".join(f"{head:>8}" for head in heads) + "  prompts  with them")
    for running in (1, 8, 64):
        measure(running, args.steps)


if __name__ == "__main__":
    main()
