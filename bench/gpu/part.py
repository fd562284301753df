"""One part of the report, in a process of its own: started by parts.py, which says on standard input what is wanted."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "cuda")]

from records import Records  # noqa: E402  (the path is set above)

if TYPE_CHECKING:
    from card import CardLab


def _lab(records: Records) -> CardLab:
    from card import CardLab

    cubins = records.options.get("cubins")
    return CardLab(cubins=Path(cubins) if cubins else None)


def limits(records: Records) -> None:
    """The card, and what it reaches. Sizes: `bytes` of memory, `rounds` of the matrix loop, `repeats`."""
    from limits import copy_rate, matrix_rate, read_rate, upload_rate

    o = records.options
    lab = None
    for key in records.each(["card", "copy", "read", "upload", "matrix"]):
        lab = lab or _lab(records)
        match key:
            case "card":
                card = lab.emulator
                free, total = card.memory()
                records.end(
                    name=card.name(),
                    arch=card.target.arch,
                    sms=card.sms,
                    l2_bytes=card.l2_bytes,
                    memory_bytes=total,
                    free_bytes=free,
                    cuda=card.driver_version(),
                    python=platform.python_version(),
                    cores=os.cpu_count(),
                    packages={name: _version(name) for name in ("cuda-bindings", "numpy", "torch", "transformers")},
                )
            case "copy":
                records.end(bytes_per_second=copy_rate(lab, o["bytes"], o["repeats"]))
            case "read":
                records.end(bytes_per_second=read_rate(lab, o["bytes"], o["repeats"]))
            case "upload":
                records.end(bytes_per_second=upload_rate(lab, o["bytes"] // 4, o["repeats"]))
            case "matrix":
                instruction, rate = matrix_rate(lab, o["rounds"], o["repeats"])
                records.end(operations_per_second=rate, instruction=instruction, compiled_here=lab.compiled)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def primitives(records: Records) -> None:
    """Every function of device.cuh."""
    from primitives import for_card

    lab = _lab(records)
    checks = {check.name: check for check in for_card(lab)}
    for key in records.each(list(checks)):
        error = ""
        try:
            checks[key].run(lab)
        except AssertionError as wrong:
            error = str(wrong) or type(wrong).__name__
        lab.release()
        records.end(error=error, compiled_here=lab.compiled)


def kernels(records: Records) -> None:
    """The cases of tests/cuda against float64, or (`tiny`) one of each template."""
    from cases import check, checked, named, ours

    from llmc.codegen.cpu.toolchain import ToolchainError

    lab = _lab(records)
    cases = named(c for c in checked(records.options["tiny"]) if ours(c.params, lab))
    for key in records.each(list(cases)):
        try:
            error = check(lab, cases[key].params, cases[key].shape, records.options["seed"])
            records.end(error=error, compiled_here=lab.compiled)
        except ToolchainError as missing:  # sampling is held against the CPU's kernel, which wants a C++ compiler
            lab.release()
            records.end(error="", not_checked=str(missing))


def times(records: Records) -> None:
    """Kernels of TIMED, beside torch's libraries where they are."""
    from card import Card
    from cases import TIMED, TimingLab, checked, named, ours, timed
    from libraries import library_for, torch_on_card

    o = records.options
    card = Card()
    lab = TimingLab(
        emulator=card,
        cubins=Path(o["cubins"]) if o.get("cubins") else None,
        repeats=1 if o["tiny"] else 20,
        flush_bytes=1 << 16 if o["tiny"] else 2 * card.l2_bytes,
    )
    cases = named(c for c in (checked(True) if o["tiny"] else TIMED) if ours(c.params, lab))
    torch, said = (None, "not asked for on an emulated card") if o["tiny"] else torch_on_card()
    for key in records.each(["libraries", *cases]):
        if key == "libraries":
            records.end(torch=said, there=torch is not None)
            continue
        case = cases[key]
        library, unlike = None, ""
        if torch is not None:
            try:
                library = library_for(case.params, case.shape, torch, "cuda")
            except RuntimeError as error:  # what a library refuses is no failure of ours
                unlike = str(error).splitlines()[0]
        found = asdict(timed(lab, case, o["seed"], library))
        lab.release()
        records.end(**found, library_error=unlike, compiled_here=lab.compiled)


def engines(records: Records) -> None:
    """Hollow engines filled, those that are not prepared made first."""
    from prepare import engine_for

    o = records.options
    for key in records.each(o["models"]):
        records.end(**engine_for(key, Path(o["prepared"]), o["target"], Path(o["scratch"]), o["tiny"]))


def model(records: Records) -> None:
    """One engine, end to end."""
    from end_to_end import measure

    measure(records)


PARTS: dict[str, Callable[[Records], None]] = {
    f.__name__: f for f in (limits, primitives, kernels, times, engines, model)
}

if __name__ == "__main__":
    asked = Records.of_parent()
    PARTS[asked.part](asked)
