"""What a CPU does at most, as bench/cpu/limits.py measured it on that CPU. Nothing is assumed where it was not run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from llmc.codegen.cpu.target import TargetError
from llmc.codegen.roofline import Peaks

FORMAT = 1


@dataclass(frozen=True)
class MeasuredLimits:
    """`mcpu`: the instruction sets of the machine (CpuTarget.mcpu); `bandwidth`: bytes per second of a plain read, and
    `peaks`: operations per second of multiply-accumulates from registers, both with `threads` threads."""

    mcpu: str
    threads: int
    bandwidth: float
    peaks: Peaks

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"


def read_limits(path: Path) -> MeasuredLimits:
    """The limits that `bench/cpu/limits.py --json FILE` wrote; TargetError for any other file."""
    try:
        content = json.loads(path.read_text())
        if content.pop("format") != FORMAT:
            raise ValueError("another format")
        content["peaks"] = Peaks(**content["peaks"])
        limits = MeasuredLimits(**content)
        if not (limits.bandwidth > 0 and limits.threads > 0):
            raise ValueError("rates that are not positive")
        return limits
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TargetError(f"{path}: not what bench/cpu/limits.py --json writes: {error}") from error
