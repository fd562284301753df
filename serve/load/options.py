"""What `llmc bench` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llmc.serve.load.campaign import Load, Workload
from llmc.serve.load.lengths import parse_lengths
from llmc.serve.load.plan import Mix, Planned, SharedPrefixes, parse_classes
from llmc.serve.load.refusal import BenchRefused
from llmc.serve.load.trace import read_trace
from llmc.serve.load.utilisation import Limits

DEFAULT_CONCURRENCY = 8


@dataclass(frozen=True)
class LoadArguments:
    """How an engine is loaded, here or by `llmc serve`; None: its own default."""

    max_batch: int | None = None
    max_seq_len: int | None = None
    threads: int | None = None
    kv_memory: int | None = None
    device: str | None = None


@dataclass(frozen=True)
class MixOptions:
    """The words that describe a workload."""

    requests: int
    prompt_len: str
    output_len: str
    trace: Path | None
    prefix_share: float
    prefix_len: int
    prefix_count: int
    classes: str | None
    seed: int

    def workload(self) -> Workload:
        if self.trace is not None:
            return Workload(tuple(read_trace(self.trace)), self.seed)
        prefixes = SharedPrefixes(self.prefix_share, self.prefix_len, self.prefix_count)
        classes = parse_classes(self.classes) if self.classes is not None else None
        prompts, outputs = parse_lengths(self.prompt_len), parse_lengths(self.output_len)
        return Workload(Mix(self.requests, prompts, outputs, prefixes, classes), self.seed)


@dataclass(frozen=True)
class BenchOptions:
    """One of `engine` and `url`. `loads`: --concurrency, --rate or --sweep, as they were written."""

    engine: Path | None
    url: str | None
    mix: MixOptions
    concurrency: int | None = None
    rate: float | None = None
    sweep: str | None = None
    repetitions: int = 1
    warmup: int = DEFAULT_CONCURRENCY
    offline: bool = False
    batches: str = "8,16"
    in_process: bool = False
    ablate: bool = False
    model: str | None = None
    chat: bool = False
    vocab_size: int | None = None
    extra_body: str | None = None
    api_key: str | None = None
    timeout: float = 600.0
    slo: str | None = None
    price_per_hour: float | None = None
    limits: Limits | None = None
    json: Path | None = None
    png: Path | None = None
    load: LoadArguments = LoadArguments()

    def check(self) -> None:
        """BenchRefused for options that contradict each other."""
        if (self.engine is None) == (self.url is None):
            raise BenchRefused("give either an engine folder, or --url of a server")
        kinds = [name for name, on in self._kinds() if on]
        if len(kinds) > 1:
            raise BenchRefused(f"{' and '.join(kinds)} are different benches: give one of them")
        if kinds and self.engine is None:
            raise BenchRefused(f"{kinds[0]} runs an engine in this process: give its folder, not --url")
        if sum(option is not None for option in (self.concurrency, self.rate, self.sweep)) > 1:
            raise BenchRefused("give one of --concurrency, --rate and --sweep")
        if self.ablate and self.sweep is not None:
            raise BenchRefused("--ablate compares at one load: give --concurrency or --rate, no --sweep")
        if self.png is not None and self.sweep is None:
            raise BenchRefused("--png draws a sweep: give --sweep concurrency=1,2,4,8 or rate=1,2,4 too")
        for path in (self.json, self.png):
            if path is not None and not path.parent.is_dir():
                raise BenchRefused(f"{path}: no such folder to write to")
        if self.price_per_hour is not None and not 0 < self.price_per_hour < float("inf"):
            raise BenchRefused(f"--price-per-hour is {self.price_per_hour}, must be more than 0")

    def _kinds(self) -> tuple[tuple[str, bool], ...]:
        return (("--offline", self.offline), ("--in-process", self.in_process), ("--ablate", self.ablate))

    def loads(self, requests: Mix | tuple[Planned, ...]) -> list[Load]:
        """One load, or those of a sweep."""
        if self.sweep is not None:
            return parse_sweep(self.sweep)
        if self.rate is not None:
            return [_checked(Load(rate=self.rate))]
        timed = not isinstance(requests, Mix) and requests[0].arrival is not None
        if self.concurrency is None and timed:
            return [Load()]
        return [_checked(Load(concurrency=self.concurrency if self.concurrency is not None else DEFAULT_CONCURRENCY))]


def parse_sweep(text: str) -> list[Load]:
    """`concurrency=1,2,4` or `rate=0.5,1,2`. BenchRefused for anything else."""
    kind, _, values = text.partition("=")
    try:
        if kind == "concurrency":
            return [_checked(Load(concurrency=int(value))) for value in values.split(",")]
        if kind == "rate":
            return [_checked(Load(rate=float(value))) for value in values.split(",")]
    except ValueError as error:
        raise BenchRefused(f"sweep {text!r}: {error}") from error
    raise BenchRefused(f"sweep {text!r}: write concurrency=1,2,4,8 or rate=0.5,1,2")


def parse_batches(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
        if min(sizes) < 1:
            raise ValueError("a batch has at least one sequence")
        return sizes
    except ValueError as error:
        raise BenchRefused(f"batches {text!r}: {error}; write 8,16") from error


def _checked(load: Load) -> Load:
    if load.concurrency is not None and load.concurrency < 1:
        raise BenchRefused(f"a closed loop has at least one request in flight, not {load.concurrency}")
    if load.rate is not None and not 0 < load.rate < float("inf"):
        raise BenchRefused(f"a rate is more than 0 requests a second, not {load.rate:g}")
    return load
