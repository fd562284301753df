"""What each serving technique brings, on this machine: the same requests, with one technique taken away at a time.

In process, so that nothing but the engine is compared. All variants have the same KV memory: what is asked for, or
else as much as the longest sequence or `concurrency` average ones need, whichever is more: memory is worth something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from llmc.runtime import Engine
from llmc.runtime.artifact.artifact import read_manifest
from llmc.runtime.artifact.features import Machine
from llmc.runtime.artifact.kv_layout import KvLayout
from llmc.runtime.artifact.target import choose_target
from llmc.runtime.step.scheduling import SchedulingOptions
from llmc.serve.load.in_process import InProcess
from llmc.serve.load.options import LoadArguments
from llmc.serve.load.plan import Planned

# name -> how an engine is loaded without the technique
WITHOUT: Mapping[str, Mapping[str, Any]] = {
    "static batches": {"scheduling": SchedulingOptions(continuous=False)},
    "reserved KV": {"scheduling": SchedulingOptions(paged=False)},
    "no prefix cache": {"prefix_cache": False},
    "whole prompts": {"scheduling": SchedulingOptions(chunked=False)},
}


@dataclass(frozen=True)
class Variant:
    """An engine with one technique less than it has, or with all of them."""

    name: str
    target: InProcess


@contextmanager
def ablations(folder: Path, load: LoadArguments, plan: Sequence[Planned], concurrency: int) -> Iterator[list[Variant]]:
    """The whole engine first, the others loaded beside it: they share the mapped weights."""
    arguments = _with_memory(folder, load, plan, concurrency)
    given = {name: value for name, value in asdict(arguments).items() if value is not None}
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(Engine.load(folder, **given, **changes))
            for name, changes in {"all techniques": {}, **WITHOUT}.items()
        }
        yield [Variant(name, InProcess(engine)) for name, engine in engines.items()]


def _with_memory(folder: Path, load: LoadArguments, plan: Sequence[Planned], concurrency: int) -> LoadArguments:
    if load.kv_memory is not None:
        return load
    manifest = read_manifest(folder)
    kv = choose_target(folder, manifest, Machine.this(), load.device).target.kv
    mean = sum(planned.input_len + planned.output_len for planned in plan) / len(plan)
    longest = load.max_seq_len or manifest.limits.max_seq_len
    return replace(load, kv_memory=max(_sequence_bytes(kv, longest), round(concurrency * mean) * kv.bytes_per_token))


def _sequence_bytes(kv: KvLayout, length: int) -> int:
    """Of whole blocks of one sequence; a group with a window keeps no more than that, and a block that it leaves."""
    held = 0
    for group in kv.groups:
        kept = length if group.window is None else min(length, group.window + kv.block_tokens)
        held += -(-kept // kv.block_tokens) * group.block_bytes
    return held
