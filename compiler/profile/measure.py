"""What the kernels of an engine's step take on this machine, beside the least that reading their bytes takes."""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmc.compiler.profile.marked_engine import Mark, MarkedEngine

Nanoseconds = npt.NDArray[np.int32]

DECODE = "decode"
PREFILL = "prefill"
ATTENTION = "paged_attention"


@dataclass(frozen=True)
class Node:
    """Kernels of one role, of all layers together. `floor_us`: to read weights and keys and values as fast as the plain
    read; None where they compute for many rows, which reading does not bound."""

    kernel: str
    role: str
    calls: int
    busy_us: float  # mean over the threads, median over the steps
    waited_us: float  # in the barrier after it
    weight_bytes: int
    kv_bytes: int
    operations: int
    floor_us: float | None


@dataclass(frozen=True)
class Profile:
    """Of steps of one kind. `around_us`: of a step, what is neither kernel nor barrier."""

    entry: str
    batch: int
    length: int  # tokens of each sequence: of its prompt
    steps: int
    threads: int
    step_us: float
    around_us: float
    read_bytes_per_s: float
    nodes: tuple[Node, ...]


def profile_decode(marked: MarkedEngine, batch: int, length: int, steps: int) -> Profile:
    """Steps of so many sequences, each one token further, from prompts of `length` tokens on."""
    engine = marked.engine
    handles = [
        engine.submit(ids, latency="batch", temperature=0.0, max_tokens=2 * steps + 8, ignore_eos=True)
        for ids in _prompts(marked, batch, length)
    ]
    for handle in handles:
        next(iter(handle))
    taken, walls = _timed(marked, engine.step, steps)
    for handle in handles:
        handle.cancel()
    return _profile(marked, DECODE, (batch, length), taken, walls)


def profile_prefill(marked: MarkedEngine, length: int, steps: int) -> Profile:
    """Steps that take a prompt of `length` tokens at once: no more than the engine's step has."""
    ids = _prompts(marked, steps, length)
    taken, walls = _timed(marked, lambda: marked.engine.generate([ids.pop()], temperature=0.0, max_tokens=1), steps)
    return _profile(marked, PREFILL, (1, length), taken, walls)


def _prompts(marked: MarkedEngine, count: int, length: int) -> list[list[int]]:
    draw, vocab = random.Random(1), marked.engine.manifest.model.num_valid_tokens
    return [[draw.randrange(vocab) for _ in range(length)] for _ in range(count)]


def _timed(marked: MarkedEngine, step: Callable[[], object], steps: int) -> tuple[list[Nanoseconds], list[float]]:
    taken, walls = [], []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        walls.append(time.perf_counter() - begin)
        taken.append(marked.take())
    return taken, walls


def _profile(
    marked: MarkedEngine, entry: str, shape: tuple[int, int], taken: Sequence[Nanoseconds], walls: Sequence[float]
) -> Profile:
    batch, length = shape
    rate = marked.weight_bytes / marked.read_seconds()
    micros = np.median(np.stack(taken).mean(axis=1), axis=0) / 1e3  # [2, marks]
    roles: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, mark in enumerate(marked.marks):
        if mark.entry == entry:
            roles[mark.kernel, mark.role].append(i)
    attentions = sum(mark.entry == entry and mark.kernel == ATTENTION for mark in marked.marks)
    nodes = []
    for (kernel, _), of_role in roles.items():
        kv_bytes = 0
        if kernel == ATTENTION and entry == DECODE:  # layers differ only by their windows: in equal parts
            kv_bytes = _kv_bytes(marked, batch, length + len(walls) // 2) * len(of_role) // attentions
        nodes.append(_node([marked.marks[i] for i in of_role], micros[:, of_role], shape, kv_bytes, rate))
    nodes.sort(key=lambda node: -(node.busy_us + node.waited_us))
    step_us = statistics.median(walls) * 1e6
    inside = sum(node.busy_us + node.waited_us for node in nodes)
    return Profile(entry, batch, length, len(walls), marked.threads, step_us, step_us - inside, rate, tuple(nodes))


def _kv_bytes(marked: MarkedEngine, batch: int, length: int) -> int:
    groups = marked.kv.groups
    return batch * sum(min(length, g.window or length) * g.bytes_per_token for g in groups)


def _node(
    marks: list[Mark], micros: npt.NDArray[np.float64], shape: tuple[int, int], kv_bytes: int, rate: float
) -> Node:
    batch, length = shape
    entry = marks[0].entry
    rows = [batch * length if entry == PREFILL and m.per_token else batch for m in marks]
    size = sum(m.weight_bytes for m in marks)
    busy, waited = (float(part) for part in micros.sum(axis=1))
    operations = 2 * sum(m.parameters * n for m, n in zip(marks, rows, strict=True))
    floor = (size + kv_bytes) / rate * 1e6 if entry == DECODE else None
    return Node(marks[0].kernel, marks[0].role, len(marks), busy, waited, size, kv_bytes, operations, floor)
