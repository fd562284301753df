"""Our engines against llama.cpp: same weights, same number of threads, interleaved in one run.

    bench/cpu/build_llamacpp.sh FOLDER
    python bench/cpu/race.py --llamacpp FOLDER/build/bin --work FOLDER/race

Each round runs, for every row, a plain read of as many bytes as our engine's weights, then llmc and llama.cpp, each of
them first in every other round. llama-quantize converts the model to bf16, and our engines are built from that very
file, anew in each run (--keep-engines: only those that are missing).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout's bench and tests

from bench.cpu.limits import Limits, huge_pages
from bench.cpu.llamacpp import LlamaCppContender, LlamaCppError, ModelWork, quantize
from bench.cpu.llmc_contender import LlmcContender, build_engine
from bench.cpu.load import LoadWatch
from bench.cpu.results import READ, READ_MAPPED, Machine, Precision, Result, Row, report
from bench.cpu.samples import Sample
from bench.cpu.workload import BATCHED, DECODE, PREFILL, Contender
from llmc.codegen.cpu.target import cpu_target
from llmc.compiler.sources.demo import fetch_demo


def prepare(args: argparse.Namespace, precision: Precision, model: Path) -> tuple[LlmcContender, LlamaCppContender]:
    """Both contenders for one precision, their files made where they are missing."""
    source = quantize(args.llamacpp, model, args.work / f"{model.stem}-BF16.gguf", "BF16")
    theirs = source
    if precision is Precision.INT8:
        theirs = quantize(args.llamacpp, source, args.work / f"{model.stem}-Q8_0.gguf", "Q8_0")
    engine = args.work / f"{model.stem}-{precision.value}.engine"
    if not (args.keep_engines and engine.exists()):
        build_engine(source, engine, precision.value)
    ours = LlmcContender(engine, args.threads)
    return ours, LlamaCppContender(args.llamacpp, theirs, ModelWork.of(theirs).weight_bytes, args.threads)


def run_round(number: int, rows: list[Row], limits: Limits) -> list[Sample]:
    samples: list[Sample] = []

    def measured(row: Row, name: str, rate: float, begin: LoadWatch) -> None:
        samples.append(Sample(number, row.name, name, rate, begin.until(LoadWatch.now())))

    for row in rows:
        for name, address in ((READ, row.buffer.ctypes.data), (READ_MAPPED, row.ours.weights_address)):
            begin = LoadWatch.now()
            size = row.ours.weight_bytes
            measured(row, name, size / float(min(limits.read(address, size))), begin)
        both: list[Contender] = [row.ours, row.theirs]
        for contender in both if number % 2 == 0 else reversed(both):
            begin = LoadWatch.now()
            rate = contender.measure(row.workload, seed=1000 * number)
            measured(row, contender.name, rate, begin)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llamacpp", type=Path, required=True, help="folder of llama-bench and llama-quantize")
    parser.add_argument("--work", type=Path, required=True, help="folder for models and engines that the race makes")
    parser.add_argument("--model", type=Path, help="a .gguf file [default: the demo's SmolLM2-135M, fetched]")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="also decode of batches, and int8 against Q8_0")
    parser.add_argument("--keep-engines", action="store_true", help="race the engines of an earlier run")
    parser.add_argument("--json", type=Path, help="every sample [default: WORK/race.json]")
    args = parser.parse_args()
    model = args.model or fetch_demo("smollm2")
    precisions = (Precision.BF16, Precision.INT8) if args.all else (Precision.BF16,)
    target = cpu_target("cpu")
    limits = Limits(target, args.threads)
    rows: list[Row] = []
    for precision in precisions:
        ours, theirs = prepare(args, precision, model)
        buffer = huge_pages(ours.weight_bytes)
        workloads = (PREFILL, DECODE, *(BATCHED if args.all else ()))
        rows.extend(Row(precision, workload, ours, theirs, buffer) for workload in workloads)
    work = ModelWork.of(rows[0].theirs.model)
    peaks = {precision: limits.widest(precision is Precision.INT8) for precision in precisions}
    samples: list[Sample] = []
    averages: list[float] = []
    try:
        for number in range(args.rounds):
            averages.append(os.getloadavg()[0])
            print(f"round {number + 1} of {args.rounds}, load average {averages[-1]:.1f}", file=sys.stderr)
            samples.extend(run_round(number, rows, limits))
    except (KeyboardInterrupt, LlamaCppError) as error:
        print(f"stopped, the rounds that are whole count: {str(error) or 'interrupted'}", file=sys.stderr)
    machine = Machine(target.mcpu, args.threads, peaks)
    results = [Result.of(row, samples, work, peaks[row.precision][1]) for row in rows] if samples else []
    print("\n".join(report(machine, results, samples)))
    print(f"load average before each round: {', '.join(f'{average:.1f}' for average in averages)}")
    found = {
        "model": model.name,
        "target": target.mcpu,
        "threads": args.threads,
        "peaks": {p.value: {kind.name.lower(): rate} for p, (kind, rate) in peaks.items()},
        "load_averages": averages,
        "results": [asdict(result) for result in results],
        "samples": [asdict(sample) for sample in samples],
    }
    out = args.json or args.work / "race.json"
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"every sample: {out}")


if __name__ == "__main__":
    main()
