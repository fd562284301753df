"""What mutation testing changes: the headers of the kernels and the text generated for kernels of row-wise nodes, where
they delete a synchronisation or compare with a bound; and the cases that must show each change.

Not among them: device.cuh (each primitive has tests of its own, and planted bugs), math.cuh and `static_assert`s, whose
comparisons are the seams of polynomials and limits of a template (kernels/test_expression.py measures the former).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from llmc.codegen.cuda.kernel import KernelParams, render
from llmc.codegen.cuda.sample.params import SampleParams
from llmc.codegen.cuda.target.nvrtc import TEMPLATES
from tests.cuda.harness import Shape
from tests.cuda.kernels import rows_examples as rows
from tests.cuda.kernels.attention_shapes import ATTENTION_MUTATED
from tests.cuda.kernels.linear_shapes import MUTATED
from tests.cuda.kernels.rows_lab import WARPS
from tests.cuda.kernels.shapes import SAMPLE_EDGES

SYNC = re.compile(
    r"\b(sync|__syncthreads|__syncwarp|__threadfence|cp_async_commit|cp_async_wait<[^>]*>|mbar_init|mbar_fence_init|"
    r"mbar_arrive|mbar_expect_tx|mbar_wait|wgmma_fence|wgmma_commit|wgmma_wait<[^>]*>|fence_proxy_async|grid_wait|"
    r"named_barrier_\w+|tma_commit|tma_wait\w*|(?:smem_)?atomic_\w+)\((?:[^();]|\([^()]*\))*\)"
)
BOUND = re.compile(r" (<|<=|>=|>) (?=[-\w(*&])")
SHIFT = {"<": "<=", "<=": "<", ">=": ">", ">": ">="}
NOT_A_BOUND = re.compile(r"static_assert|^\s*(//|#|template)")

Cases = tuple[tuple[KernelParams, Shape], ...]
_SAMPLE: Cases = (
    (SampleParams(997, 1000, 64, 64), {"rows": 42, "behind": 1}),
    (SampleParams(256, 256, 32, 32), {"rows": 9, "behind": 0}),
    (SampleParams(7, 7, 32, 32), {"rows": 9, "behind": 0}),
    SAMPLE_EDGES,
)
HEADERS: dict[str, Cases] = {
    "rows.cuh": tuple((rows.kernel(body), {"rows": 2}) for body in (rows.every_type(48), rows.layer_norm(768))),
    **{file: tuple(cases) for file, cases in (MUTATED | ATTENTION_MUTATED).items()},
    **{f"{name}.cuh": _SAMPLE for name in ("sample", "selection", "select", "winner", "race", "philox")},
}
# Bodies whose generated kernels are mutated: every form of loop, reductions over rows and heads, cache writes.
BODIES = (
    rows.every_type(48),
    rows.layer_norm(768),
    rows.rms_norm(4096),
    rows.embedding(1000, 576, 32),
    rows.queries_keys_values(32, 16, 16, norms=True),
    rows.queries_keys_values(4, 4, 64, norms=False, style="interleaved", turned=32),
    rows.sampled(576),
    WARPS,
)


class Kind(enum.Enum):
    SYNC = "synchronisations"
    BOUND = "bounds"
    ORDER = "events, edges and waits of two_streams.py"


@dataclass(frozen=True)
class Source:
    """A header, or the whole text of one kernel. The first cases show most mutants."""

    name: str
    text: str
    cases: Cases
    is_header: bool


@cache
def sources() -> dict[str, Source]:
    headers = [Source(name, (TEMPLATES / name).read_text(), cases, True) for name, cases in HEADERS.items()]
    kernels = [rows.kernel(body) for body in BODIES]
    generated = [Source(f"{p.name}.cu", render(p, "kernel"), ((p, {"rows": 2}),), False) for p in kernels]
    return {s.name: s for s in (*headers, *generated)}


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int  # 1-based
    column: int
    old: str
    new: str
    kind: Kind

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.old!r} -> {self.new!r}"

    def key(self, text: str) -> tuple[str, int, str]:
        """Survives edits elsewhere in the file: which of equal lines it is, and the line, «» around what changes."""
        lines = [x.strip() for x in text.splitlines()]
        row = text.splitlines()[self.line - 1]
        end = self.column + len(self.old)
        marked = f"{row[: self.column]}«{self.old}»{row[end:]}".strip()
        return self.file, lines[: self.line - 1].count(row.strip()), marked

    def apply(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        row, at = lines[self.line - 1], self.column
        lines[self.line - 1] = row[:at] + self.new + row[at + len(self.old) :]
        return "".join(lines)


def mutants_of(source: Source) -> Iterator[Mutant]:
    for number, row in enumerate(source.text.splitlines(), 1):
        code = row.split("//")[0]
        if NOT_A_BOUND.search(row):
            continue
        if not re.match(r"\s*(static )?LLMC_DEVICE", code):  # else it declares one
            for m in SYNC.finditer(code):
                used = "=" in code[: m.start()]
                yield Mutant(source.name, number, m.start(), m[0], "0u" if used else "(void)0", Kind.SYNC)
        for m in BOUND.finditer(code):
            yield Mutant(source.name, number, m.start() + 1, m[1], SHIFT[m[1]], Kind.BOUND)


def mutants() -> Iterator[Mutant]:
    for source in sources().values():
        yield from mutants_of(source)
