"""A card's report: primitives, kernels, and their times beside what the card reaches. At most eight minutes.

    python bench/gpu/run.py [--out FOLDER] [--seed N] [--minutes M]      on the first GPU
    python bench/gpu/run.py --emulate                                    here, at tiny sizes: does the script run?

Writes FOLDER/<card>.json (default bench/gpu/results) and prints the same as tables; exits 1 if anything is wrong.
End to end (tokens per second of whole models) is not part of it yet.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "cuda")]


def emulate(arguments: list[str], arch: str) -> int:
    """The same script in a process whose libcuda.so.1 is the emulator's."""
    from llmc.emulator.build import build_driver
    from llmc.emulator.devices import A100, H100, L40S, environment

    device = {"sm_80": A100, "sm_89": L40S, "sm_90a": H100}[arch]
    with tempfile.TemporaryDirectory() as twins:
        env = os.environ | {
            "LD_LIBRARY_PATH": str(build_driver().folder),
            "LLMC_EMU_TWINS": twins,
            "LLMC_EMU_DEVICES": environment([device]),
        }
        return subprocess.run([sys.executable, __file__, *arguments], env=env).returncode


def report(seed: int, minutes: float, tiny: bool) -> dict[str, object]:
    """Everything, in order of importance: a card that computes wrongly is not worth timing."""
    from card import CardLab
    from kernels import TIMED, Timed, TimingLab, check, one_of_each, timed
    from limits import measure
    from primitives import for_card
    from shapes import quick

    start = time.monotonic()
    until = start + 60 * minutes
    lab = CardLab()
    card = lab.emulator
    print(f"{card.name()}, {card.target.arch}, {card.sms} SMs, CUDA {card.driver_version()}", flush=True)
    primitives = {}
    for shown in for_card(lab):
        try:
            shown.run(lab)
            primitives[shown.name] = ""
        except AssertionError as error:
            primitives[shown.name] = str(error)
        lab.release()
    wrong = {name: error for name, error in primitives.items() if error}
    print(f"primitives: {len(primitives)} checks, {len(wrong)} wrong, {time.monotonic() - start:.0f} s", flush=True)
    for name, error in wrong.items():
        print(f"  WRONG {name}: {error}")

    cases = one_of_each() if tiny else quick()
    checked = list(check(lab, cases, seed, start + 0.6 * (until - start)))
    failures = [r for r in checked if r.error]
    ours = sum(p.rejects(card.target) is None for p, _ in cases)
    print(
        f"kernels: {len(checked)} of {ours} cases, {len(failures)} wrong, {time.monotonic() - start:.0f} s", flush=True
    )
    for r in failures:
        print(f"  WRONG {r.kernel} {r.shape}: {r.error}")

    limits = measure(lab, 1 << 20 if tiny else 1 << 30, 2 if tiny else 20000, 1 if tiny else 10)
    print(
        f"copy {limits.copy_bytes_per_second / 1e9:.0f} GB/s; bf16 {limits.bf16_flops / 1e12:.1f} TFLOP/s "
        f"({limits.instruction})"
    )
    large = tuple(Timed(*case) for case in one_of_each()) if tiny else TIMED
    clock = TimingLab(
        emulator=card,
        repeats=1 if tiny else 20,
        flush_bytes=1 << 16 if tiny else 2 * card.l2_bytes,
        _kernels=lab._kernels,
    )
    rows = []
    print(f"{'kernel':44} {'us':>9} {'GB/s':>7} {'of copy':>8} {'TFLOP/s':>8} {'of mma':>7}")
    for r in timed(clock, large, seed, until):
        seconds = max(sum(r.seconds), 1e-9)
        copy, flops = r.bytes / seconds, r.flops / seconds
        of_copy, of_mma = copy / limits.copy_bytes_per_second, flops / limits.bf16_flops
        rows.append(asdict(r) | {"of_copy": of_copy, "of_mma": of_mma})
        print(
            f"{r.kernel:44} {1e6 * seconds:9.1f} {copy / 1e9:7.0f} {of_copy:8.0%} {flops / 1e12:8.1f} {of_mma:7.0%}"
            + (f"  WRONG {r.error}" if r.error else ""),
            flush=True,
        )
    took = time.monotonic() - start
    print(f"{took:.0f} s in all")
    return {
        "card": card.name(),
        "arch": card.target.arch,
        "sms": card.sms,
        "driver": card.driver_version(),
        "tiny": tiny,
        "seed": seed,
        "seconds": took,
        "primitives": primitives,
        "checked": [asdict(r) for r in checked],
        "cases": ours,
        "limits": asdict(limits),
        "timed": rows,
        "complete": len(checked) == ours and len(rows) == sum(t.params.rejects(card.target) is None for t in large),
        "wrong": len(wrong) + len(failures) + sum(bool(row["error"]) for row in rows),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the inputs (default: the time)")
    parser.add_argument("--minutes", type=float, default=7.5)
    parser.add_argument("--emulate", metavar="ARCH", nargs="?", const="sm_90a", choices=("sm_80", "sm_89", "sm_90a"))
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.emulate:
        given = ["--tiny", "--out", str(args.out), "--seed", str(args.seed), "--minutes", str(args.minutes)]
        return emulate(given, args.emulate)
    found = report(args.seed, args.minutes, args.tiny)
    name = re.sub(r"\W+", "-", str(found["card"])).strip("-").lower()
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{name}{'-emulated' if args.tiny else ''}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"wrote {path.name}; {'complete' if found['complete'] else 'INCOMPLETE: out of time'}")
    return int(bool(found["wrong"]) or not found["complete"])


if __name__ == "__main__":
    sys.exit(main())
