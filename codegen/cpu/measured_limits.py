"""What a CPU does at most, as bench/cpu/limits.py measured it on that CPU. Nothing is assumed where it was not run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from llmc.codegen.cpu.target import CpuTarget, TargetError
from llmc.codegen.cuda.target.capabilities import CudaTarget
from llmc.codegen.roofline import Machine, Peaks

FORMAT = 1


@dataclass(frozen=True)
class MeasuredLimits:
    """`mcpu`: the instruction sets of the machine (CpuTarget.mcpu); `bandwidth`: bytes per second of a plain read, and
    `peaks`: operations per second of multiply-accumulates from registers, both with `threads` threads."""

    mcpu: str
    threads: int
    bandwidth: float
    peaks: Peaks

    def machine(self, target: CpuTarget) -> Machine | None:
        """None where they were measured on another kind of CPU."""
        return Machine(self.bandwidth, target.l2_bytes, self.peaks) if self.mcpu == target.mcpu else None

    def check(self, targets: Sequence[CpuTarget | CudaTarget]) -> None:
        """TargetError where they are of none of the targets, so that a file given in vain is not passed over."""
        names = [f"{t.name} ({t.mcpu})" if isinstance(t, CpuTarget) else t.arch for t in targets]
        if not any(isinstance(t, CpuTarget) and t.mcpu == self.mcpu for t in targets):
            raise TargetError(f"limits were measured on {self.mcpu}, which is none of the targets: {', '.join(names)}")

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
