"""python -m llmc.emulator: run a command on an emulated GPU, with the twins of an engine's kernels.

    python -m llmc.emulator [--device DEVICE] --arch sm_90a ENGINE -- COMMAND [ARGUMENT ...]

Compiles the emulated driver and the twins, where the cache lacks them, and becomes the command.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from llmc.emulator.build import BuildError, build_driver
from llmc.emulator.cache import cache_dir
from llmc.emulator.devices import H100, environment, parse_device
from llmc.emulator.engine_twins import install_twins
from llmc.emulator.progress import shown

EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code of a refusal; otherwise the process becomes the command."""
    parser = argparse.ArgumentParser(
        prog="python -m llmc.emulator",
        usage="%(prog)s [-h] [--device DEVICE] --arch ARCH [--arch ARCH ...] [--check] ENGINE -- COMMAND ...",
    )
    parser.add_argument("--device", default=environment([H100]), help="what to be [default: %(default)s]")
    parser.add_argument(
        "--arch", required=True, action="append", help="of the engine's cubins: sm_90a; may be repeated"
    )
    parser.add_argument("--check", action="store_true", help="watch for races and bad accesses; many times slower")
    parser.add_argument("engine", type=Path)
    given = sys.argv[1:] if arguments is None else arguments
    own, command = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    options = parser.parse_args(own)
    if not command:
        parser.error("no command: give one after --")
    try:
        device = parse_device(options.device)
        if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
            raise BuildError("emulating a GPU needs cuda-python: pip install 'llmc[cuda]'")
        with shown("compiling the emulated driver", sys.stderr) as tell:
            driver = build_driver(progress=tell)
        # Where none of the kernels runs, the command is to say so, as on such a GPU.
        archs = [arch for arch in dict.fromkeys(options.arch) if device.runs(arch)] or options.arch[:1]
        with shown("compiling kernels for the CPU", sys.stderr) as tell:
            twins = install_twins(options.engine, archs, options.check, tell)
    except (BuildError, OSError, ValueError) as error:
        print(f"llmc.emulator: {_words(error)}", file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    print(
        f"emulating an {device.name} on this CPU: the answers are those of its kernels, "
        "every figure of speed is the emulator's",
        file=sys.stderr,
        flush=True,
    )
    folders = [str(driver.folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    variables = {
        "LD_LIBRARY_PATH": ":".join(folders),
        "LLMC_EMU_TWINS": str(twins),
        "LLMC_EMU_CHECK": "race" if options.check else "",
        "LLMC_EMU_DEVICES": environment([device]),
    }
    try:
        os.execvpe(command[0], command, os.environ | variables)
    except OSError as error:
        print(f"llmc.emulator: {command[0]}: {error.strerror}", file=sys.stderr)
        return EXIT_REFUSED


def _words(error: Exception) -> str:
    if not isinstance(error, OSError) or error.filename is None:
        return str(error)
    file = Path(os.fsdecode(error.filename))
    hint = "; set LLMC_CACHE to a folder that can be written" if file.is_relative_to(cache_dir().parent) else ""
    return f"{file}: {error.strerror}{hint}"


if __name__ == "__main__":
    sys.exit(main())
