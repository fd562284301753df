"""Which of an engine's targets this machine runs: the first that it can, CUDA before CPU."""

from dataclasses import dataclass
from pathlib import Path

from llmc.runtime.artifact.features import Machine
from llmc.runtime.artifact.manifest import ABIS, CPU, CUDA, Manifest, TargetEntry
from llmc.runtime.errors import AbiMismatch, InvalidParameter, MachineMismatch


@dataclass(frozen=True)
class ChosenTarget:
    """The target to run, and in a line each why targets that would have come before it do not run here."""

    target: TargetEntry
    passed_over: tuple[str, ...] = ()


def choose_target(folder: Path, manifest: Manifest, machine: Machine, device: str | None = None) -> ChosenTarget:
    """Raises MachineMismatch or AbiMismatch, InvalidParameter for an unknown `device`.

    Among CUDA targets one that was compiled for this very GPU comes first. CUDA is looked for only if the engine has a
    target of that kind and `device` does not say cpu.
    """
    if device not in (None, CPU, CUDA):
        raise InvalidParameter(f"device must be {CPU!r} or {CUDA!r}, got {device!r}")
    wanted = [target for target in manifest.targets if device in (None, target.kind)]
    if not wanted:
        has = ", ".join(target.name for target in manifest.targets)
        raise MachineMismatch(f"{folder}: built for {has}, not for {device}; build it again with that target")
    passed_over: list[str] = []
    for target in _cuda_first(wanted, passed_over):
        reason = None if target.kind == CUDA else _cpu_mismatch(target, machine)
        if reason is None:
            if target.kind == CPU and manifest.abi not in ABIS:
                known = " and ".join(map(str, ABIS))
                raise AbiMismatch(
                    f"{folder}: step ABI {manifest.abi}, this llmc speaks {known}; build the engine again"
                )
            return ChosenTarget(target, tuple(passed_over))
        passed_over.append(reason)
    raise MachineMismatch(f"{folder}: {'; '.join(passed_over)}")


def _cuda_first(wanted: list[TargetEntry], passed_over: list[str]) -> list[TargetEntry]:
    """CUDA targets that this machine runs, then CPU targets; says why other CUDA targets are left out."""
    cuda = [target for target in wanted if target.kind == CUDA]
    cpu = [target for target in wanted if target.kind == CPU]
    if not cuda:
        return cpu
    from llmc.runtime.cuda.driver.gpu import choose_cuda

    runnable, reasons = choose_cuda(cuda)
    passed_over += reasons
    return [*runnable, *cpu]


def _cpu_mismatch(target: TargetEntry, machine: Machine) -> str | None:
    if target.arch != machine.arch:
        return f"built for {target.arch}, this machine is {machine.arch}"
    missing = machine.missing(target.features)
    if missing:
        return (
            f"built for a CPU with {', '.join(missing)}, which this one lacks; "
            "build it again on this machine or for a target without"
        )
    return None
