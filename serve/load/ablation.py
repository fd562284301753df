"""What each serving technique brings, on this machine: the same requests, with one technique taken away at a time.

In process, so that nothing but the engine is compared. All variants have the same KV memory: what the engine is loaded
with, or else as much as the longest sequence or `concurrency` average ones need, whichever is more, so that memory is
worth something.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llmc.runtime import Engine
from llmc.runtime.artifact.artifact import read_manifest
from llmc.runtime.artifact.features import Machine
from llmc.runtime.artifact.kv_layout import KvLayout
from llmc.runtime.artifact.target import choose_target
from llmc.serve.load.in_process import InProcess
from llmc.serve.load.options import LoadArguments
from llmc.serve.load.plan import Planned


@dataclass(frozen=True)
class Batches:
    """Static batching: the next batch begins when every answer of the one before has ended.

    Answers that have ended leave it, and nothing is padded: batches of padded sequences would be slower still
    (`padded tok/s`).
    """

    def admits(self, planned: Planned, under_way: Sequence[Planned], steps: int) -> bool:
        return not under_way or steps == 0


@dataclass(frozen=True)
class Reserved:
    """Contiguous reservation: every sequence holds room for the longest one from its beginning to its end, so that no
    more than `slots` of them share the memory."""

    slots: int

    def admits(self, planned: Planned, under_way: Sequence[Planned], steps: int) -> bool:
        return len(under_way) < self.slots


@dataclass(frozen=True)
class Variant:
    """An engine with one technique less than it has, or with all of them."""

    name: str
    target: InProcess


@contextmanager
def ablations(folder: Path, load: LoadArguments, plan: Sequence[Planned], concurrency: int) -> Iterator[list[Variant]]:
    """The whole engine first. Variants that only admit differently share it; the others are loaded beside it."""
    arguments = _with_memory(folder, load, plan, concurrency)
    with ExitStack() as stack:
        whole = stack.enter_context(_load(folder, arguments))
        slots = _slots(whole, whole.device.limits.max_seq_len)
        found = [
            Variant("all techniques", InProcess(whole)),
            Variant("static batches", InProcess(whole, Batches())),
            Variant(f"reserved, {slots} fit", InProcess(whole, Reserved(slots))),
        ]
        yield found


def _load(folder: Path, arguments: LoadArguments, **changes: Any) -> Engine:
    given = {name: value for name, value in asdict(arguments).items() if value is not None}
    return Engine.load(folder, **given, **changes)


def _with_memory(folder: Path, load: LoadArguments, plan: Sequence[Planned], concurrency: int) -> LoadArguments:
    if load.kv_memory is not None:
        return load
    manifest = read_manifest(folder)
    kv = choose_target(folder, manifest, Machine.this(), load.device).target.kv
    mean = sum(planned.input_len + planned.output_len for planned in plan) / len(plan)
    longest = load.max_seq_len or manifest.limits.max_seq_len
    return replace(load, kv_memory=max(_sequence_bytes(kv, longest), round(concurrency * mean) * kv.bytes_per_token))


def _slots(engine: Engine, max_seq_len: int) -> int:
    """Sequences whose room is reserved in one piece, at least one."""
    return max(1, engine.device.memory.kv_bytes // _sequence_bytes(engine.artifact.target.kv, max_seq_len))


def _sequence_bytes(kv: KvLayout, length: int) -> int:
    """Of whole blocks of one sequence; a group with a window keeps no more than that, and a block that it leaves."""
    held = 0
    for group in kv.groups:
        kept = length if group.window is None else min(length, group.window + kv.block_tokens)
        held += -(-kept // kv.block_tokens) * group.block_bytes
    return held
