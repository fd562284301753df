"""Mutation testing: deletes, one at a time, every synchronisation of the kernels and shifts every bound by one
(mutants.py), then leaves out every event, edge and wait of tests/emulator/two_streams.py. Each mutant must be caught by
the compiler, by a wrong result, by a report of the emulator or by the budgets of the GPU's code.

    python tests/cuda/mutate.py [--only SUBSTRING] [--jobs N]

prints a line per mutant, then caught / total by file and kind. Survivors must stand in harmless.py with their reason.
Exit status 1 if one does not, if one that does is caught after all or is no mutant any more, or if a kernel fails
without a mutation.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "emulator"))
sys.path.insert(0, str(Path(__file__).parent))

import sass
import two_streams
from harmless import HARMLESS
from harness import Lab
from mutants import Kind, Mutant, Source, mutants, sources
from references import Wrong

from llmc.codegen.cuda.kernel import KernelParams
from llmc.codegen.cuda.target.capabilities import TARGETS
from llmc.codegen.cuda.target.nvrtc import TEMPLATES, CompileError, compile_cubin, headers
from llmc.emulator.build import BuildError, build_twin
from llmc.emulator.session import THREE_SCHEDULES, CudaError, Emulator

_emulator: Emulator | None = None


def emulator() -> Emulator:
    """This process's."""
    global _emulator
    _emulator = _emulator or Emulator()
    return _emulator


def verdict(mutant: Mutant) -> str:
    """How the mutant was caught, or "" if it survived."""
    source = sources()[mutant.file]
    text = mutant.apply(source.text)
    if not source.is_header:
        return shown(source, Lab(emulator=emulator(), source=lambda _: text))
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp) / hashlib.sha256(mutant.name.encode()).hexdigest()[:8]
        shutil.copytree(TEMPLATES, folder, ignore=shutil.ignore_patterns("*.j2", "__pycache__"))
        (folder / mutant.file).write_text(text)
        return shown(source, Lab(emulator=emulator(), headers=folder))


def shown(source: Source, lab: Lab) -> str:
    for params, shape in source.cases:
        for schedule in THREE_SCHEDULES:
            try:
                lab.run(params, shape, schedule)
            except BuildError:
                return "compiler"
            except (Wrong, CudaError) as e:
                return f"{schedule.mode.name.lower()}: {e}"
    for params, _ in source.cases[:2]:
        if why := static_proof(params, lab):
            return f"static: {why}"
    return ""


def static_proof(params: KernelParams, lab: Lab) -> str:
    """What g++'s loop analysis, NVRTC or the SASS budget says against the kernel, for Hopper."""
    target, text = TARGETS["sm_90a"], lab.source(params)
    try:
        build_twin(text, [lab.headers], checked=False)
        compiled = compile_cubin(text, target.arch, files=headers(lab.headers))
    except (BuildError, CompileError) as e:
        return next((line for line in str(e).splitlines() if "error" in line), str(e))
    return compiled.log or "; ".join(sass.violations(compiled.cubin, "kernel", params.budget(target)))


def left_out(ordering: str) -> str:
    """The same for an ordering of the two-stream program; "" for none that is left out."""
    return next((how for how in two_streams.verdict(emulator(), ordering or None, two_streams.SCHEDULES) if how), "")


@dataclass(frozen=True)
class Outcome:
    """Of one mutant. how: it was caught; reason: why it is harmless if not."""

    name: str
    file: str
    kind: Kind
    how: str
    reason: str

    @property
    def word(self) -> str:
        if self.how:
            return "WRONGLY EXCUSED" if self.reason else "caught"
        return "excused" if self.reason else "SURVIVED"


def outcomes(only: str, jobs: int | None) -> Iterable[Outcome]:
    todo = [m for m in mutants() if only in m.name]
    unchanged = {m.file: replace(m, new=m.old) for m in todo}
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for file, how in zip(unchanged, pool.imap(verdict, unchanged.values()), strict=True):
            if how:
                sys.exit(f"{file} fails without a mutation: {how}")
        for m, how in zip(todo, pool.imap(verdict, todo), strict=True):
            yield Outcome(m.name, m.file, m.kind, how, HARMLESS.get(m.key(sources()[m.file].text), ""))
        orderings = [o for o in two_streams.ORDERINGS if only in f"two_streams.py: {o}"]
        if orderings and (how := pool.apply(left_out, ("",))):
            sys.exit(f"two_streams.py fails with nothing left out: {how}")
        for o, how in zip(orderings, pool.imap(left_out, orderings), strict=True):
            yield Outcome(f"two_streams.py: {o}", "two_streams.py", Kind.ORDER, how, "")


def summary(what: str, part: list[Outcome]) -> str:
    """The percentage is of those that are not harmless."""
    caught, harmless = (sum(o.word == word for o in part) for word in ("caught", "excused"))
    survived = len(part) - caught - harmless
    percent = 100 * caught / max(1, len(part) - harmless)
    return (
        f"{what:42} caught {caught:3} / {len(part):3}, harmless {harmless:2}, survived {survived:2}: {percent:5.1f} %"
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="part of a mutant's name, which begins with its file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    stale = set(HARMLESS) - {m.key(sources()[m.file].text) for m in mutants()}
    for key in stale:
        print("NO MUTANT", *key)
    done = []
    for o in outcomes(args.only, args.jobs):
        done.append(o)
        print(o.word, o.name, (o.how or o.reason)[:220], flush=True)
    print()
    for file in dict.fromkeys(o.file for o in done):
        print(summary(file, [o for o in done if o.file == file]))
    for kind in dict.fromkeys(o.kind for o in done):
        print(summary(kind.value, [o for o in done if o.kind is kind]))
    print(summary("total", done))
    return bool(stale or any(o.word not in ("caught", "excused") for o in done))


if __name__ == "__main__":
    sys.exit(main())
