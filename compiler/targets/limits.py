"""Limits of a CPU that a user measured, against the targets that they are given for."""

from __future__ import annotations

from collections.abc import Sequence

from llmc.codegen.cpu.measured_limits import MeasuredLimits
from llmc.codegen.cpu.target import TargetError
from llmc.compiler.targets.backend import Backend


def check_limits(limits: MeasuredLimits, targets: Sequence[Backend]) -> None:
    """TargetError where they are of none of the targets, so that a file given in vain is not passed over."""
    if not any(target.is_measured_by(limits) for target in targets):
        names = ", ".join(f"{target.name} ({target.product})" for target in targets)
        raise TargetError(f"limits were measured on {limits.mcpu}, which is none of the targets: {names}")
