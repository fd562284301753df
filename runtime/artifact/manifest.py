"""The engine's manifest as types.

Everything a loader must know before it reads anything large (docs/engine.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from llmc.runtime.artifact.bounds import at_least
from llmc.runtime.artifact.kv_layout import KvLayout

FORMAT = 4
ABI = 3
ABIS = (2, ABI)  # that are read; engines of 2 have threads of their own
MAX_LOGPROBS = 20  # alternatives that a row of a step's outputs holds, on every target
CPU, CUDA = "cpu", "cuda"
LINE_BYTES = 64  # of a CPU's cache


@dataclass(frozen=True)
class ModelSummary:
    """The model in figures.

    Ids `num_valid_tokens`..`vocab_size`-1 are padding of the head and are never sampled.
    """

    name: str
    architecture: str
    dtype: str
    num_parameters: int
    vocab_size: int
    num_valid_tokens: int
    max_seq_len: int

    def __post_init__(self) -> None:
        at_least(
            1,
            vocab_size=self.vocab_size,
            num_valid_tokens=self.num_valid_tokens,
            max_seq_len=self.max_seq_len,
        )
        if self.num_valid_tokens > self.vocab_size:
            raise ValueError(f"num_valid_tokens {self.num_valid_tokens} exceeds vocab_size {self.vocab_size}")


@dataclass(frozen=True)
class Limits:
    """The envelope: the largest run-time values the compiled steps accept."""

    max_seq_len: int
    max_batch: int
    max_tokens: int

    def __post_init__(self) -> None:
        at_least(1, max_seq_len=self.max_seq_len, max_batch=self.max_batch, max_tokens=self.max_tokens)


@dataclass(frozen=True)
class ArenaBytes:
    """Scratch memory: constant + per_token * max_tokens + per_row * max_rows + per_thread * threads, in whole lines.

    That is what llmc_create allocates of a CPU target where the envelope's max_seq_len is used; less for a lower one,
    which `per_thread` of CPU targets depends on.
    """

    constant: int
    per_token: int
    per_row: int
    per_thread: int

    def total(self, max_tokens: int, max_rows: int, threads: int) -> int:
        """Bytes for steps of so many tokens and sampled rows."""
        exact = self.constant + self.per_token * max_tokens + self.per_row * max_rows + self.per_thread * threads
        return -(-exact // LINE_BYTES) * LINE_BYTES


@dataclass(frozen=True)
class TargetMemory:
    """Bytes known at build, from which (and from `kv`) the largest concurrency can be proved.

    `kv_bytes_per_token`: of a position while all KV groups keep it.
    """

    weights_bytes: int
    kv_bytes_per_token: int
    arena: ArenaBytes


@dataclass(frozen=True)
class TargetEntry:
    """What one target's kernels were compiled for, what memory they want, and where their files are.

    `kind` is cpu or cuda. `arch` is the machine's (x86_64) or the GPU's (sm_90a: exactly 9.0; sm_80: 8.0 up to 9). All
    `features` of a CPU target must be there; those of a CUDA target are told for people. `kernels` and `plans` are
    folders of the engine: model.so or cubins, and <entry>.json. `memory.weights_bytes` counts what this target reads
    of weights.safetensors.
    """

    kind: str
    name: str
    arch: str
    features: tuple[str, ...]
    kernels: str
    plans: str
    kv: KvLayout
    memory: TargetMemory

    def __post_init__(self) -> None:
        if self.kind not in (CPU, CUDA):
            raise ValueError(f"kind is {self.kind!r}, must be {CPU!r} or {CUDA!r}")

    @property
    def library(self) -> str:
        """The compiled steps of a CPU target, as a file of the engine."""
        return f"{self.kernels}/model.so"

    def plan(self, entry: str) -> str:
        """The launch plan of an entry (prefill, decode), as a file of the engine."""
        return f"{self.plans}/{entry}.json"


@dataclass(frozen=True)
class SpecialTokens:
    """Ids with a role. `eos` is the union of what config, generation config and tokenizer say."""

    bos: int | None
    eos: tuple[int, ...]
    pad: int | None
    add_bos: bool

    def __post_init__(self) -> None:
        at_least(0, bos=self.bos, pad=self.pad)
        if any(token < 0 for token in self.eos):
            raise ValueError(f"eos has a negative id: {list(self.eos)}")
        if self.add_bos and self.bos is None:
            raise ValueError("add_bos is true but bos is null")


@dataclass(frozen=True)
class GenerationDefaults:
    """The model's own sampling defaults (generation_config.json); None where it says nothing.

    As in transformers, the model samples by default only where `do_sample` is true; else it is greedy.
    """

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileEntry:
    """Size and BLAKE3 (64 hex digits) of one file."""

    bytes: int
    blake3: str

    def __post_init__(self) -> None:
        at_least(0, bytes=self.bytes)
        if len(self.blake3) != 64 or set(self.blake3) - set("0123456789abcdef"):
            raise ValueError(f"blake3 {self.blake3!r} is not 64 hex digits")


@dataclass(frozen=True)
class Manifest:
    """manifest.json without its own checksum, which `artifact.render_manifest` adds.

    `files` maps every other file's path inside the folder (POSIX, relative) to its size and BLAKE3; a build
    leaves it empty and `artifact.seal` fills it. `producer` names the versions of the tools that made the
    engine. Of the `targets` a machine runs the first that it can (target.py). `abi` is that of CPU targets.
    """

    producer: Mapping[str, str]
    targets: tuple[TargetEntry, ...]
    model: ModelSummary
    limits: Limits
    tokens: SpecialTokens
    generation: GenerationDefaults
    files: Mapping[str, FileEntry]
    format: int = FORMAT
    abi: int = ABI

    def __post_init__(self) -> None:
        names = [target.name for target in self.targets]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"targets are {names}, must be one or more with different names")
