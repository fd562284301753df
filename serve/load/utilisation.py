"""How much of what the machine can do a run used: MFU of arithmetic, MBU of memory bandwidth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmc.runtime.artifact.kv_layout import KvLayout
from llmc.runtime.artifact.manifest import TargetEntry
from llmc.serve.load.records import Record, Run


@dataclass(frozen=True)
class Limits:
    """What a machine does at most: bytes of memory a second, and operations a second by arithmetic (bf16, s8 ...)."""

    bandwidth: float
    peaks: Mapping[str, float | None]


@dataclass(frozen=True)
class ModelWork:
    """What tokens cost. `prompt_flops`, `output_flops`: of the matrices, for a token of a prompt and for one that is
    sampled, a multiply-add being two; `arithmetic`: their format. `weight_bytes`: what every step reads."""

    prompt_flops: float
    output_flops: float
    arithmetic: str
    weight_bytes: int
    kv: KvLayout

    def flops(self, prompt_tokens: int, output_tokens: int) -> float:
        """Of one request: as many tokens are sampled as it has of output, the first from its prompt's last."""
        return max(0, prompt_tokens - 1) * self.prompt_flops + output_tokens * self.output_flops

    def kv_read(self, position: int) -> int:
        """Bytes of keys and values that a token at a position reads."""
        return sum(
            (position + 1 if group.window is None else min(position + 1, group.window)) * group.bytes_per_token
            for group in self.kv.groups
        )


@dataclass(frozen=True)
class Machine:
    """A model on a machine. `peak`: operations a second of the model's arithmetic, where it is known."""

    bandwidth: float
    peak: float | None
    work: ModelWork


def machine_of(report: Path, target: TargetEntry, limits: Limits | None) -> Machine | None:
    """The model's work by the prediction in an engine's report.json, under the limits that were measured, or else those
    that the prediction was made with (a GPU's data sheet). None where either is missing."""
    try:
        prediction = json.loads(report.read_text())["targets"][target.name]["roofline"]
        limits = limits or Limits(float(prediction["bandwidth"]), prediction["peaks"])
        point = next(point for point in prediction["points"] if point["batch"] == 1)
        output, arithmetic = _linears(point["tpot"]["kernels"])
        whole, _ = _linears(point["ttft"]["kernels"])
        prompt = (whole - output) / (int(point["length"]) - 1)  # the last token of a prompt is sampled
        work = ModelWork(prompt, output, arithmetic, int(prediction["weight_bytes"]), target.kv)
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, StopIteration):
        return None
    return Machine(limits.bandwidth, limits.peaks.get(arithmetic), work)


@dataclass(frozen=True)
class Utilisation:
    """`mfu`: operations of the linears (attention left out) over wall time and peak. `mbu`: the weights once a step and
    the keys and values that each output token reads, over wall time and bandwidth; None where steps are not counted."""

    mfu: float | None
    mbu: float | None


def utilisation(run: Run, machine: Machine | None) -> Utilisation | None:
    if machine is None or not run.answered or not run.seconds:
        return None
    work = machine.work
    mfu = None
    if machine.peak is not None:
        flops = sum(work.flops(r.prompt_tokens - (r.cached_tokens or 0), r.output_tokens) for r in run.answered)
        mfu = flops / run.seconds / machine.peak
    mbu = None
    if run.gauges.steps is not None:
        moved = run.gauges.steps * work.weight_bytes + sum(_kv_read(work, record) for record in run.answered)
        mbu = moved / run.seconds / machine.bandwidth
    return Utilisation(mfu, mbu)


def _linears(kernels: list[dict[str, Any]]) -> tuple[float, str]:
    """Operations of all linears together, and the format of the largest."""
    linears = [kernel for kernel in kernels if kernel["op"].endswith("linear")]
    largest = max(linears, key=lambda kernel: float(kernel["matrix_flops"]))
    return float(sum(kernel["matrix_flops"] for kernel in linears)), str(largest["matrix_unit"])


def _kv_read(work: ModelWork, record: Record) -> int:
    first, last = record.prompt_tokens, record.prompt_tokens + record.output_tokens - 1
    return sum(work.kv_read(position) for position in range(first, last))
