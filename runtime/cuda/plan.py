"""plans/<target>/<entry>.json of a CUDA target, as types: launches on fixed addresses, and the edges between them.

Every argument of a launch is known when the engine is loaded; what changes from step to step lies in device memory
(templates/cuda/step.cuh). A grid is a product of envelope symbols, so that one plan serves every bucket: a bucket of
n launches the grid of its largest step, and blocks beyond the step's counts return at once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from llmc.runtime.artifact.plan import FORMAT, Arena, Buffer, PlannedLaunch
from llmc.runtime.artifact.strict_json import JsonMismatch, from_plain, parse_json
from llmc.runtime.errors import ManifestInvalid

SYMBOLS = ("T", "R", "S", "L")
POINTERS = ("buffer", "weight", "input", "scratch", "kv", "output")
SCALARS = ("i32", "i64", "f32", "extent")


@dataclass(frozen=True)
class Sizes:
    """Values of the symbols: tokens T, sampled rows R and sequences S of a bucket; L, the longest sequence served."""

    tokens: int
    rows: int
    seqs: int
    length: int

    def value(self, symbol: str) -> int:
        return {"T": self.tokens, "R": self.rows, "S": self.seqs, "L": self.length}[symbol]


@dataclass(frozen=True)
class Factor:
    """ceil(symbol / per)."""

    symbol: str
    per: int

    def __post_init__(self) -> None:
        if self.symbol not in SYMBOLS:
            raise ValueError(f"symbol is {self.symbol!r}, expected one of {', '.join(SYMBOLS)}")
        if self.per < 1:
            raise ValueError(f"per is {self.per}, must be at least 1")


@dataclass(frozen=True)
class Extent:
    """times * the product of the factors: blocks of a grid, bytes of scratch, or an argument's value."""

    times: int
    factors: tuple[Factor, ...] = ()

    def at(self, sizes: Sizes) -> int:
        return self.times * prod(-(-sizes.value(f.symbol) // f.per) for f in self.factors)


@dataclass(frozen=True)
class Scratch:
    """Memory that launches share and that none needs once it has ended, as large as the largest variant of any bucket
    asks. `zeroed`: zero at load, and left zero by every launch."""

    name: str
    zeroed: bool


@dataclass(frozen=True)
class Box:
    """What a tensor map adds to a pointer: a row-major matrix read in boxes. Its rows: `rows`, or all of a buffer's."""

    dtype: str
    rows: int | None
    columns: int
    row_bytes: int
    box_rows: int
    box_columns: int
    swizzle: int  # bytes: 0, 32, 64 or 128


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel, in its order.

    kind `buffer`, `weight`, `input`, `output`, `scratch`: the address of `name`; `kv`: of the pool of the KV group
    whose number `name` is; with `box`, a tensor map over it. kind `i32`, `i64`, `f32`: `value`; `extent`: the i32
    value of `extent`.
    """

    kind: str
    name: str | None = None
    value: float | None = None
    extent: Extent | None = None
    box: Box | None = None

    def __post_init__(self) -> None:
        if self.kind not in (*POINTERS, *SCALARS):
            raise ValueError(f"kind is {self.kind!r}, expected one of {', '.join((*POINTERS, *SCALARS))}")
        given = [name for name in ("name", "value", "extent", "box") if getattr(self, name) is not None]
        wanted = "name" if self.kind in POINTERS else "extent" if self.kind == "extent" else "value"
        if wanted not in given or set(given) - {wanted, *(("box",) if self.kind in POINTERS else ())}:
            raise ValueError(f"an argument of kind {self.kind} has {wanted}, got {', '.join(given) or 'nothing'}")


@dataclass(frozen=True)
class Variant:
    """The kernel of a launch in buckets of up to `up_to` rows (tokens or sampled rows, as the launch counts)."""

    up_to: int
    kernel: str
    grid: tuple[Extent, ...]
    block: int
    shared_bytes: int
    arguments: tuple[Argument, ...]
    scratch: Mapping[str, Extent]  # bytes of each that it uses

    def __post_init__(self) -> None:
        if not 1 <= len(self.grid) <= 3:
            raise ValueError(f"{self.kernel}: a grid of {len(self.grid)} dimensions, expected 1 to 3")


@dataclass(frozen=True)
class Launch(PlannedLaunch):
    """One kernel call. `rows`: the symbol that its variants' `up_to` bounds; variants ascend, and the last has no bound
    that a step could exceed."""

    rows: str
    variants: tuple[Variant, ...]

    def variant(self, rows: int) -> Variant:
        """The one for a bucket of `rows` rows."""
        return next((v for v in self.variants if rows <= v.up_to), self.variants[-1])


@dataclass(frozen=True)
class Plan:
    """An entry (prefill or decode). `kernels`: the file in the engine that holds each kernel. `logits`: the buffer of
    raw logits, f32[R, vocabulary]."""

    entry: str
    arena: Arena
    buffers: tuple[Buffer, ...]
    scratch: tuple[Scratch, ...]
    kernels: Mapping[str, str]
    launches: tuple[Launch, ...]
    logits: str
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"plan format {self.format}, this llmc reads {FORMAT}; build the engine again")
        names = {"buffer": {b.name for b in self.buffers}, "scratch": {s.name for s in self.scratch}}
        logits = next((b for b in self.buffers if b.name == self.logits), None)
        if logits is None or logits.rows != "R" or not logits.type.startswith("f32["):
            raise ValueError(f"logits are {self.logits!r}, which is no buffer of f32 rows per sampled row")
        for index, launch in enumerate(self.launches):
            where = f"launches[{index}] ({launch.op} {launch.loc})"
            if any(not 0 <= before < index for before in launch.after):
                raise ValueError(f"{where}: after {list(launch.after)}, expected earlier launches")
            if launch.rows not in SYMBOLS or not launch.variants:
                raise ValueError(f"{where}: counts {launch.rows!r} rows in {len(launch.variants)} variants")
            for variant in launch.variants:
                if variant.kernel not in self.kernels:
                    raise ValueError(f"{where}: no file for kernel {variant.kernel}")
                for argument in variant.arguments:
                    if argument.kind in names and argument.name not in names[argument.kind]:
                        raise ValueError(f"{where}: no {argument.kind} named {argument.name!r}")

    def variants(self) -> Iterator[Variant]:
        """Of all launches."""
        for launch in self.launches:
            yield from launch.variants

    def names(self, kind: str) -> set[str]:
        """Names of all arguments of a kind."""
        return {a.name for v in self.variants() for a in v.arguments if a.kind == kind and a.name is not None}


def read_plan(text: bytes, where: str) -> Plan:
    """The plan of a file. Raises ManifestInvalid, naming `where` and the key."""
    try:
        return from_plain(Plan, parse_json(text))
    except JsonMismatch as error:
        raise ManifestInvalid(f"{where}: {error}") from error
