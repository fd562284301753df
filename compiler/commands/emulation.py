"""`--emulate`: the same command again, in a process whose CUDA driver is the emulator's.

The emulator is started as a program, not imported: it builds its driver and twins of the engine's kernels, and then
becomes the command given to it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from llmc.codegen.cuda.target.gpus import GPUS, Gpu, gpu_for
from llmc.runtime.artifact.artifact import read_manifest
from llmc.runtime.artifact.manifest import CUDA, TargetEntry
from llmc.runtime.errors import MachineMismatch

_AGAIN = "from llmc.compiler.commands.cli import main; main()"


def emulate(context: click.Context, engine: Path, gpu: str | None) -> NoReturn:
    """Replace this process by the emulator running the context's command on a CUDA target of the engine.

    `gpu`: the GPU to be, by default that of the engine's first CUDA target. Raises EngineError.
    """
    targets = _targets(engine)
    device = ["--device", _gpu(gpu, targets[0]).device]
    archs = [word for target in targets for word in ("--arch", target.arch)]  # which one, the GPU decides
    emulator = [sys.executable, "-m", "llmc.emulator", *device, *archs, str(engine)]
    given = {**context.params, "emulate": False, "emulate_gpu": None, "device": CUDA}
    command = [sys.executable, "-c", _AGAIN, str(context.info_name), *command_line(context.command, given)]
    sys.stdout.flush()
    os.execv(sys.executable, [*emulator, "--", *command])


def _targets(engine: Path) -> list[TargetEntry]:
    targets = read_manifest(engine).targets
    cuda = [target for target in targets if target.kind == CUDA]
    if not cuda:
        raise MachineMismatch(
            f"{engine}: built for {', '.join(t.name for t in targets)}; only CUDA targets are emulated: "
            "build it again with --target h100, or leave --emulate out"
        )
    return cuda


def _gpu(name: str | None, target: TargetEntry) -> Gpu:
    """The one asked for; else that which the target is built for, or the first like it."""
    found = GPUS.get(target.name, gpu_for(target.arch)) if name is None else GPUS.get(name)
    if found is None:
        what = f"no GPU for {target.arch}" if name is None else f"{name} is no GPU that"
        raise MachineMismatch(f"{what} is emulated; those that are: {', '.join(GPUS)}")
    return found


def command_line(command: click.Command, values: dict[str, Any]) -> list[str]:
    """Arguments that give a command these values of its parameters."""
    options: list[str] = []
    arguments: list[str] = []
    for parameter in command.params:
        value = values[parameter.name or ""]
        if isinstance(parameter, click.Argument):
            arguments += [str(one) for one in (value if parameter.nargs == -1 else (value,))]
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            options += [parameter.opts[0]] if value else []
        elif value is not None:
            name = max(parameter.opts, key=len)
            options += [f"{name}={one}" for one in (value if parameter.multiple else (value,))]
    return [*options, "--", *arguments]
