"""A card's report: primitives, kernels, their times beside the card's limits, whole models. At most eight minutes.

    python bench/gpu/prepare.py                        first, here: what the card's machine then need not make
    python bench/gpu/run.py [--minutes M]              on the first GPU
    python bench/gpu/run.py --emulate [ARCH]           anywhere, at tiny sizes: does the script run?

Writes FOLDER/<card>.json (default bench/gpu/results) after every item, and prints it as tables; exits 1 if anything is
wrong, failed, or was left out for want of time, and says which.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout's bench and tests

from bench.gpu.parts import Background, Outcome, Part, Run
from bench.gpu.prepare import MODELS, PREPARED, check_folder, check_models
from bench.gpu.records import Item
from bench.gpu.report import Report, bandwidth, rate
from bench.gpu.tables import show
from llmc.codegen.cuda.target.capabilities import TARGETS
from llmc.codegen.cuda.target.gpus import GPUS, gpu_for
from llmc.runtime.artifact.atomic_folder import hidden_sibling, remove_dead_siblings

HERE = Path(__file__).resolve().parent
Expect = Callable[[str, Item], None]
PARTS = ("limits", "primitives", "kernels", "engines", "times", "model")
# Seconds that each part may take of 450, which is --minutes; models share what is left.
SHARES = {"limits": 60.0, "primitives": 60.0, "kernels": 110.0, "times": 75.0}
# Seconds without a word after which a part is taken for hung. Checks are quick, but for one that first compiles the
# CPU's sampling; a case that is timed may be computed on the host for a while, an engine of 16 GB loaded.
PATIENCE = {"limits": 60.0, "primitives": 20.0, "kernels": 30.0, "times": 60.0, "model": 60.0}
EMULATED_PATIENCE = 900.0
SERIAL_SECONDS = 30.0  # of looking for the kernel that a model died of
MINUTES = 7.5
LIMITS = {"bytes": 1 << 30, "rounds": 20000, "repeats": 10}
SCRATCH = "llmc-bench"  # of the hidden folder's name
SCRATCH_BYTES = 24 << 30  # of the three engines together, and some room


@dataclass(frozen=True)
class Session:
    """How parts are started. `env`: of those that launch kernels of ours."""

    report: Report
    until: float
    env: Mapping[str, str]

    def patience(self, part: str) -> float:
        return EMULATED_PATIENCE if self.report.tiny else PATIENCE[part]

    def run(
        self, part: Part, until: float, env: Mapping[str, str] | None = None, expect: Expect | None = None
    ) -> Outcome:
        """One part, into the report item by item, and its table. `expect`: adds to each item what was expected."""

        def on_item(key: str, item: Item) -> None:
            if expect is not None:
                expect(key, item)
            self.report.write()

        run = Run(part, min(until, self.until), env or self.env, on_item)
        self.report.parts[part.name] = run.outcome
        run.run()
        return self.done(part.name)

    def done(self, name: str) -> Outcome:
        outcome = self.report.parts[name]
        self.report.write()
        limits = {"bandwidth": bandwidth(self.report.limits), "bf16": rate(self.report.limits)}
        print("\n".join(show(name, outcome.plain(), limits)), flush=True)
        return outcome


def gpu_of(card: str, arch: str) -> str:
    """Which of the GPUs that engines are built for this card is, by its name, or is most like, by its architecture."""
    words = re.sub(r"[^a-z0-9]", "", card.lower())
    alike = [name for name, gpu in GPUS.items() if gpu.arch == arch]
    return next((name for name in alike if name in words), alike[0])


@dataclass(frozen=True)
class Asked:
    """The command line."""

    out: Path
    seed: int
    minutes: float
    prepared: Path
    scratch: Path
    models: tuple[str, ...]
    only: tuple[str, ...]
    tiny: bool

    def wants(self, part: str) -> bool:
        """Without --only, every part. Models need engines."""
        words = {part, part.split()[0]} | ({"model"} if part == "engines" else set())
        return not self.only or bool(words & set(self.only))


def measure(asked: Asked, env: Mapping[str, str], twins: Callable[[Path], Mapping[str, str]]) -> Report:
    """Everything, in order of importance: a card that computes wrongly is not worth timing.

    env: of parts that launch kernels of ours; twins: of those that run an engine's, given its folder.
    """
    start = time.monotonic()
    models = [f"model {name}" for name in asked.models]
    expected = tuple(n for n in ("limits", "primitives", "kernels", "engines", "times", *models) if asked.wants(n))
    found = Report(asked.out, asked.seed, asked.tiny, start, expected=expected)
    session = Session(found, start + 60 * asked.minutes, env)
    common = {"cubins": str(asked.prepared / "cubins"), "tiny": asked.tiny, "seed": asked.seed}

    def begin(name: str, deaths: int = 1, **options: Any) -> Outcome:
        until = time.monotonic() + SHARES[name] * asked.minutes / MINUTES
        return session.run(Part(name, name, common | options, deaths, session.patience(name)), until)

    sizes = {"bytes": 1 << 20, "rounds": 2, "repeats": 1} if asked.tiny else LIMITS
    card = begin("limits", 3, **sizes).items.get("card")
    if card is None:
        found.notes["card"] = "no GPU that can be used: nothing else was tried"
        return found
    target = gpu_of(card["name"], card["arch"])
    filling = _fill(session, asked, target) if asked.wants("engines") else None
    try:
        for name in ("primitives", "kernels"):
            if asked.wants(name):
                begin(name, 8)
    finally:  # whatever happens to the parent, the engines' process ends before their folder goes
        if filling is not None:
            found.parts["engines"] = filling.result()
            session.done("engines")
    if asked.wants("times"):
        begin("times", 6)
    for number, name in enumerate(asked.models):
        if asked.wants(f"model {name}"):
            until = time.monotonic() + (session.until - time.monotonic()) / (len(asked.models) - number)
            _model(session, asked, name, target, until, twins)
    return found


def _fill(session: Session, asked: Asked, target: str) -> Background:
    """Fills engines while kernels are checked, without a GPU."""
    options = {
        "models": list(asked.models),
        "prepared": str(asked.prepared),
        "target": target,
        "scratch": str(asked.scratch),
        "tiny": asked.tiny,
    }
    # half of the time at most, so that something is left to measure them in
    until = time.monotonic() + (session.until - time.monotonic()) / 2
    return Background(Run(Part("engines", "engines", options, 2, 900.0), until, os.environ))


def _model(
    session: Session, asked: Asked, name: str, target: str, until: float, twins: Callable[[Path], Mapping[str, str]]
) -> None:
    """One engine, end to end; after a fault once more with kernels launched one by one, which names it."""
    from bench.gpu.end_to_end import TINY, Workload

    found, engine = session.report, asked.scratch / name
    filled = found.parts["engines"].items.get(name, {"error": "not filled in time"}) if "engines" in found.parts else {}

    def leave_out(why: str) -> None:
        found.notes[f"model {name}"] = why
        print(f"model {name}: LEFT OUT, {why}", flush=True)

    if filled.get("error", "engines were not filled") or not engine.is_dir():
        return leave_out(f"no engine: {filled.get('error', 'engines were not filled')}")
    try:
        env = twins(engine)
    except RuntimeError as error:  # BuildError of an emulated card: no twin for a damaged kernel
        return leave_out(str(error))
    work = TINY if asked.tiny else Workload()
    options = {"engine": str(engine), "workload": asdict(work), "seed": asked.seed}
    patience = session.patience("model")
    part = Part(f"model {name}", "model", options, 4, patience)  # TTFT is measured even where no decode step works
    outcome = session.run(part, until, env, _expectations(found, engine, target))
    if outcome.errors:
        serial = options | {"serial": True, "workload": asdict(TINY)}
        part = Part(f"model {name}, kernel by kernel", "model", serial, 1, patience)
        session.run(part, time.monotonic() + SERIAL_SECONDS, env)
    shutil.rmtree(engine, ignore_errors=True)  # it may lie in memory


def _expectations(found: Report, engine: Path, target: str) -> Expect:
    """Adds floor_s and expected_s to the items of a model: a limit that was not measured is the data sheet's."""
    from bench.gpu.expectations import Expectations, Measured, card_as_measured

    gpu, card = GPUS[target], found.limits["card"]
    assert gpu.peaks.bf16 is not None
    upload = found.limits.get("upload", {}).get("bytes_per_second", 0.0)
    measured = Measured(bandwidth(found.limits) or gpu.bandwidth, upload, rate(found.limits) or gpu.peaks.bf16)
    of = Expectations(engine, gpu, card_as_measured(gpu, card["sms"], card["l2_bytes"], measured), measured)

    def expect(key: str, item: Item) -> None:
        try:
            match key.split():
                case ["cold", "start"]:
                    item |= asdict(of.cold_start())
                case ["TPOT,", "batch", batch]:
                    item |= asdict(of.tpot(int(batch), item["context"]))
                case ["TTFT,", tokens, "tokens"]:
                    item |= asdict(of.ttft(int(tokens)))
        except Exception as error:  # what was measured is worth more than what was expected
            item["no_expectation"] = f"{type(error).__name__}: {error}"

    return expect


@contextmanager
def emulated(
    arch: str, models: str, given: Path | None
) -> Iterator[tuple[Path, Mapping[str, str], Callable[[Path], Mapping[str, str]]]]:
    """Everything that a report on an emulated card needs: prepared folder, and the environment of its processes, whose
    libcuda.so.1 is the emulator's."""
    from llmc.emulator.build import build_driver
    from llmc.emulator.engine_twins import install_twins

    gpu = gpu_for(arch)
    if gpu is None:
        raise SystemExit(f"--emulate {arch}: no GPU of that architecture is known")
    with tempfile.TemporaryDirectory() as folder:
        prepared, kernels = given or Path(folder) / "prepared", Path(folder) / "twins"
        kernels.mkdir()
        if given is None:
            command = [sys.executable, str(HERE / "prepare.py"), "--tiny", "--target", gpu.name]
            if subprocess.run([*command, "--out", str(prepared), "--models", models]).returncode:
                raise SystemExit("nothing was measured: prepare.py has failed")
        env = os.environ | {
            "LD_LIBRARY_PATH": str(build_driver().folder),
            "LLMC_EMU_DEVICES": gpu.device,
        }
        yield (
            prepared,
            env | {"LLMC_EMU_TWINS": str(kernels)},
            lambda engine: env | {"LLMC_EMU_TWINS": str(install_twins(engine, [arch], False))},
        )


def scratch_parent(num_bytes: int, shared: Path = Path("/dev/shm")) -> Path:
    """Where so many bytes of engines go: memory where there is enough of it, since nothing of them is kept.

    What a report that was killed has left there goes first.
    """
    if shared.is_dir():
        remove_dead_siblings(shared / SCRATCH)
        if shutil.disk_usage(shared).free > num_bytes:
            return shared
    return Path(tempfile.gettempdir())


def _check(args: argparse.Namespace, models: tuple[str, ...], only: tuple[str, ...]) -> None:
    """Raises ValueError for what would be found out, or silently left out, after minutes."""
    for word in only:
        if word not in (*PARTS, *(f"model {name}" for name in models)):
            raise ValueError(f"--only {word}: no such part; those that are: {', '.join(PARTS)}, model NAME")
    if args.prepared is not None and not args.prepared.is_dir():
        raise ValueError(f"--prepared {args.prepared}: no such folder; prepare.py --out makes it")
    if not 0 < args.minutes < math.inf:
        raise ValueError(f"--minutes {args.minutes}: expected a number above 0")
    if args.seed < 0:
        raise ValueError(f"--seed {args.seed}: expected 0 or more")
    check_models(models, args.prepared or PREPARED)
    check_folder(args.out, "--out")
    if args.scratch is not None:
        check_folder(args.scratch, "--scratch")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the inputs (default: the time)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="nothing is begun later (default: %(default)s)")
    parser.add_argument("--prepared", type=Path, help="what prepare.py has made (default: here; emulating: made anew)")
    parser.add_argument("--models", default=",".join(MODELS), help="with commas (default: %(default)s)")
    parser.add_argument("--only", default="", help=f"parts, with commas: {', '.join(PARTS)}, model NAME")
    parser.add_argument(
        "--scratch", type=Path, help="where filled engines lie meanwhile (default: in memory, if it has room)"
    )
    parser.add_argument("--emulate", metavar="ARCH", nargs="?", const="sm_90a", choices=TARGETS)
    args = parser.parse_args()
    models = tuple(filter(None, args.models.split(",")))
    only = tuple(filter(None, args.only.split(",")))
    try:
        _check(args, models, only)
    except ValueError as error:
        parser.error(str(error))
    parent = args.scratch or scratch_parent(SCRATCH_BYTES if not args.emulate else 1 << 30)
    with hidden_sibling(parent / SCRATCH) as scratch:
        prepared = args.prepared or PREPARED
        asked = Asked(args.out, args.seed, args.minutes, prepared, scratch, models, only, bool(args.emulate))
        if args.emulate:
            with emulated(args.emulate, args.models, args.prepared) as (prepared, env, twins):
                found = measure(replace(asked, prepared=prepared), env, twins)
        else:
            found = measure(asked, os.environ, lambda engine: os.environ)
    found.write()
    print(f"{time.monotonic() - found.start:.0f} s in all; wrote {found.path.name}; {found.verdict}")
    return int(bool(found.wrong) or not found.complete)


if __name__ == "__main__":
    sys.exit(main())
