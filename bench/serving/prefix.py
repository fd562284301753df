"""What the prefix cache brings, and what it costs: python bench/serving/prefix.py ENGINE

TTFT of a request over a prefix that another one computed, beside the same request under another salt, which computes
all of it; rounds with prefixes of their own, interleaved. Then the microseconds of the bookkeeping, which is Python.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout's bench

from llmc.runtime import Completion, Engine
from llmc.runtime.kv.blocks import BlockManager, BlockTable
from llmc.runtime.kv.prefix import PrefixChain, root_of
from llmc.runtime.kv.retention import Retention
from llmc.runtime.loop.request import TokenHistory

BLOCK, STEP, DECODED = 32, 512, 320
ROOT = root_of(b"bench", "", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--prefix", type=int, default=1000, help="shared tokens (%(default)s)")
    parser.add_argument("--own", type=int, default=16, help="tokens of each request behind them (%(default)s)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with Engine.load(options.engine, threads=options.threads, max_batch=4) as engine:
        first_tokens(engine, options.prefix, options.own, options.rounds)
    bookkeeping(options.prefix)


def first_tokens(engine: Engine, prefix: int, own: int, rounds: int) -> None:
    rng, vocab = random.Random(7), engine.manifest.model.num_valid_tokens
    ratios, cold, warm = [], [], []
    print(f"TTFT of {prefix} shared tokens and {own} of its own, {rounds} rounds")
    for _ in range(rounds):
        shared = [rng.randrange(vocab) for _ in range(prefix)]
        prompts = [[*shared, *(rng.randrange(vocab) for _ in range(own))] for _ in range(2)]
        first, second, other = (
            _answer(engine, prompt, salt)
            for prompt, salt in zip([*prompts, prompts[1]], ["", "", "other"], strict=True)
        )
        assert (first.num_cached, second.num_cached, other.num_cached) == (0, prefix, 0)
        assert (second.token_ids, second.logprobs) == (other.token_ids, other.logprobs), "warm is not cold"
        cold.append(first.timing.ttft)
        warm.append(second.timing.ttft)
        ratios.append(second.timing.ttft / first.timing.ttft)
    print(f"  first   {1e3 * statistics.median(cold):8.1f} ms")
    print(f"  second  {1e3 * statistics.median(warm):8.1f} ms  x{statistics.median(ratios):.3f} of the first (median)")
    print(f"  the worst round x{max(ratios):.3f}; under another salt: 0 tokens found, the same answer bit for bit")


def _answer(engine: Engine, prompt: list[int], salt: str) -> Completion:
    (completion,) = engine.generate([prompt], temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=1, salt=salt)
    return completion


def bookkeeping(prefix: int) -> None:
    rng = random.Random(7)
    prompts = iter([[rng.randrange(50000) for _ in range(prefix)] for _ in range(100)])
    on, off = (
        BlockManager([Retention(None, BLOCK, STEP)], [2 * prefix // BLOCK], prefix_cache=cache)
        for cache in (True, False)
    )
    chain = compute(on, next(prompts))
    print(f"\nbookkeeping of {prefix} tokens in blocks of {BLOCK}, best of 20, microseconds")
    figure("keys of the prompt (SHA-256)", lambda: PrefixChain(chain.history, ROOT).key(prefix // BLOCK - 1, BLOCK))
    figure("allocate, all found, and free", lambda: on.free(_there(on.allocate(prefix + 1, chain))))
    figure("awaits, with nothing under way", lambda: on.awaits(chain))
    managers = {"cache on": on, "cache off": off}
    for name, manager in managers.items():
        figure(
            f"a new prompt from allocate to free, evicting another ({name})", partial(compute_next, manager, prompts)
        )
    for name, manager in managers.items():
        figure(f"{DECODED} steps of decoding from allocate to free ({name})", partial(decode, manager))


def figure(what: str, call: Callable[[], object]) -> None:
    seconds = []
    for _ in range(20):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    print(f"  {what:70} {1e6 * min(seconds):8.1f}")


def compute_next(manager: BlockManager, prompts: Iterator[list[int]]) -> None:
    compute(manager, next(prompts))


def compute(manager: BlockManager, ids: list[int]) -> PrefixChain:
    chain = PrefixChain(TokenHistory(ids), ROOT)
    table = _there(manager.allocate(len(ids), chain))
    for end in (*range(STEP, len(ids), STEP), len(ids)):
        manager.take(table, end)
        manager.computed(table, end)
    manager.free(table)
    return chain


def decode(manager: BlockManager) -> None:
    history = TokenHistory([random.randrange(50000)])
    table = _there(manager.allocate(1, PrefixChain(history, ROOT)))
    for length in range(1, DECODED + 1):
        manager.extend(table, length)
        manager.take(table, length)
        manager.computed(table, length)
        history.append(5)
    manager.free(table)


def _there(table: BlockTable | None) -> BlockTable:
    assert table is not None
    return table


if __name__ == "__main__":
    main()
