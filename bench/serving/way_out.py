"""What a token costs on its way out of an engine, over HTTP: python -m bench.serving.way_out ENGINE

The same requests, all at once, in turns: on an engine in this process, and from `llmc serve` over HTTP. Most of it is
decode. An engine on as many threads as there are cores waits while the server's other process works, and while the
client does, whose CPU time is no cost of serving.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout

from bench.cpu.load import LoadWatch
from llmc.runtime import Engine
from llmc.serve.load.campaign import Load, Target, Workload
from llmc.serve.load.in_process import InProcess
from llmc.serve.load.lengths import Fixed
from llmc.serve.load.options import BenchOptions, LoadArguments, MixOptions
from llmc.serve.load.plan import Mix
from llmc.serve.load.running_server import connected, serve_command
from llmc.serve.load.started_server import free_port, started

PROMPT = 32  # tokens
SEED = 11


@dataclass(frozen=True)
class Found:
    """Of one run: tokens a second, and CPU seconds a token of the process that serves and of the client."""

    rate: float
    serving: float
    client: float


def runs(args: argparse.Namespace) -> Iterator[tuple[Found, Found]]:
    """In process and over HTTP, round by round; the first round only warms."""
    mix, load = MixOptions(0, "1", "1", None, 0.0, 0, 1, None, SEED), LoadArguments(args.requests, threads=args.threads)
    command = serve_command(args.engine, port := free_port(), load)
    with ExitStack() as stack:
        engine = stack.enter_context(Engine.load(args.engine, threads=args.threads, max_batch=args.requests))
        process = stack.enter_context(started(command, port))
        options = BenchOptions(None, process.url, mix, vocab_size=engine.manifest.model.num_valid_tokens)
        server = stack.enter_context(connected(options, process.url, process.pid))
        for number in range(args.rounds + 1):
            here, there = run(InProcess(engine), None, number, args), run(server, process.pid, number, args)
            if number:
                yield here, there


def run(target: Target, pid: int | None, number: int, args: argparse.Namespace) -> Found:
    plan = Workload(Mix(args.requests, Fixed(PROMPT), Fixed(args.tokens)), SEED).plan(Load(concurrency=args.requests))
    before = cpu_seconds(pid) if pid else 0.0
    done = target.run(plan, args.requests, f"{SEED}/{number}", lambda: None)
    after = cpu_seconds(pid) if pid else 0.0
    if len(done.answered) < len(plan):
        raise SystemExit(f"{len(plan) - len(done.answered)} requests failed")
    tokens = sum(record.output_tokens for record in done.answered)
    return Found(tokens / done.seconds, (after - before) / tokens, (done.client_cpu or 0.0) / tokens)


def cpu_seconds(pid: int) -> float:
    """Of a process so far, without its children; to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--requests", type=int, default=8, help="in flight (%(default)s)")
    parser.add_argument("--tokens", type=int, default=256, help="of each answer (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    watch = LoadWatch.now()
    found = list(runs(args))
    load = watch.until(LoadWatch.now())
    here, there = (median(one.rate for one in side) for side in zip(*found, strict=True))
    ratios = sorted(b.rate / a.rate for a, b in found)
    served = [b for _, b in found]
    serving, client = 1e6 * median(one.serving for one in served), 1e6 * median(one.client for one in served)
    more = 1e6 * (1 / there - 1 / here)
    print(f"{args.engine.name}: {args.requests} in flight, {PROMPT} in, {args.tokens} out, {args.threads} threads")
    spread = f"{median(ratios):.3f} ({ratios[0]:.3f}..{ratios[-1]:.3f})"
    print(f"in process {here:.0f} tok/s, over HTTP {there:.0f}: {spread}")
    print(f"a token: {more:.1f} us more of wall time; CPU: the server's {serving:.1f} us, the client's {client:.1f} us")
    print(f"without the client's CPU time: {1e6 / here / (1e6 / here + more - client):.3f}")
    print(f"load average {os.getloadavg()[0]:.1f}, others' cores {load.others:.2f}")


if __name__ == "__main__":
    main()
