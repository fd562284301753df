"""Mutation testing of the kernels: deletes, one at a time, every synchronisation in the templates, and
moves every
bound by one; each mutant must be caught by the compiler, by a wrong result, or by a report of the emulator.

    python tests/cuda/mutate.py [--only SUBSTRING] [--jobs N]

prints one line per mutant and the total; survivors must stand in HARMLESS with their reason, else exit
status 1.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from attention_shapes import ATTENTION_MUTATED
from harmless import HARMLESS
from harness import Lab, Shape
from linear_shapes import MUTATED
from references import Wrong

from llmc.codegen.cuda import sass
from llmc.codegen.cuda.kernel import KernelParams, render
from llmc.codegen.cuda.nvrtc import TEMPLATES, CompileError, compile_cubin, headers
from llmc.codegen.cuda.rows_examples import every_type, kernel, layer_norm
from llmc.codegen.cuda.sample import SampleParams
from llmc.codegen.cuda.target import TARGETS
from llmc.emulator.build import BuildError, build_twin
from llmc.emulator.session import THREE_SCHEDULES, CudaError

SYNC = re.compile(
    r"\b(__syncthreads|__syncwarp|__threadfence|cp_async_commit|cp_async_wait<[^>]*>|mbar_init|mbar_fence_init|"
    r"mbar_arrive|mbar_expect_tx|mbar_wait|wgmma_fence|wgmma_commit|wgmma_wait<[^>]*>|fence_proxy_async|grid_wait|"
    r"named_barrier_\w+|tma_commit|tma_wait\w*|(?:smem_)?atomic_\w+)\((?:[^();]|\([^()]*\))*\)"
)
BOUND = re.compile(r" (<|<=|>=|>) (?=[\w(*&])")
SHIFT = {"<": "<=", "<=": "<", ">=": ">", ">": ">="}
NOT_A_BOUND = re.compile(r"static_assert|^\s*(//|#|template)| > top \?|> m\[g\] \?")

CASES: dict[str, list[tuple[KernelParams, Shape]]] = {
    "rows.cuh": [(kernel(body), {"rows": 2}) for body in (every_type(48), layer_norm(768))],
    **MUTATED,
    **{
        file: [
            (SampleParams(997, 1000, 64, 64), {"rows": 42, "behind": 1}),
            (SampleParams(256, 256, 128, 128), {"rows": 9, "behind": 0}),
        ]
        for file in ("sample.cuh", "selection.cuh", "select.cuh")
    },
    **ATTENTION_MUTATED,
}


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int  # 1-based
    column: int
    old: str
    new: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.old!r} -> {self.new!r}"

    def key(self, text: str) -> tuple[str, str, str, int]:
        """Survives edits elsewhere in the file: the line's text, the change, and which of equal lines it
        is."""
        lines = text.splitlines()
        mine = lines[self.line - 1].strip()
        return self.file, mine, self.new or "deleted", sum(x.strip() == mine for x in lines[: self.line - 1])

    def apply(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        row, at = lines[self.line - 1], self.column
        lines[self.line - 1] = row[:at] + self.new + row[at + len(self.old) :]
        return "".join(lines)


def mutants(folder: Path = TEMPLATES) -> list[Mutant]:
    found = []
    for file in CASES:
        for number, row in enumerate((folder / file).read_text().splitlines(), 1):
            code = row.split("//")[0]
            if NOT_A_BOUND.search(row):
                continue
            for m in SYNC.finditer(code):
                declared = re.match(r"\s*(static )?LLMC_DEVICE", code)
                if not declared:
                    found.append(
                        Mutant(file, number, m.start(), m[0], "(void)0" if "=" not in code[: m.start()] else "0u")
                    )
            for m in BOUND.finditer(code):
                found.append(Mutant(file, number, m.start() + 1, m[1], SHIFT[m[1]]))
    return found


_lab: Lab | None = None


def verdict(mutant: Mutant) -> str:
    """How the mutant was caught, or "" if it survived."""
    global _lab
    source = (TEMPLATES / mutant.file).read_text()
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp) / hashlib.sha256(mutant.name.encode()).hexdigest()[:8]
        shutil.copytree(TEMPLATES, folder, ignore=shutil.ignore_patterns("*.j2", "__pycache__"))
        (folder / mutant.file).write_text(mutant.apply(source))
        _lab = Lab(headers=folder) if _lab is None else Lab(headers=folder, emulator=_lab.emulator)
        for params, shape in CASES[mutant.file]:
            for schedule in THREE_SCHEDULES:
                try:
                    _lab.run(params, shape, schedule)
                except BuildError:
                    return "compiler"
                except (Wrong, CudaError) as e:
                    return f"{schedule.mode.name.lower()}: {e}"
        for params, _ in CASES[mutant.file][:2]:
            if why := static_proof(params, folder):
                return f"static: {why}"
    return ""


def static_proof(params: KernelParams, folder: Path) -> str:
    """What g++'s loop analysis, NVRTC or the SASS budget says against the kernel, for Hopper."""
    target = TARGETS["sm_90a"]
    try:
        build_twin(render(params, "kernel"), [folder], checked=False)
        compiled = compile_cubin(render(params, "kernel"), target.arch, files=headers(folder))
    except (BuildError, CompileError) as e:
        return str(e)
    return compiled.log or "; ".join(sass.violations(compiled.cubin, "kernel", params.budget(target)))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    args = parser.parse_args()
    os.environ.setdefault("LLMC_CACHE_DIR", str(Path.home() / ".cache" / "llmc"))
    todo = [m for m in mutants() if args.only in m.name]
    survivors, excused = [], 0
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for m, how in zip(todo, pool.imap(verdict, todo), strict=True):
            reason = HARMLESS.get(m.key((TEMPLATES / m.file).read_text()), "")
            print(
                "caught " if how else "excused" if reason else "SURVIVED",
                m.name,
                (how or reason)[:220],
                flush=True,
            )
            if not how:
                excused += bool(reason)
                survivors += [] if reason else [m]
    caught = len(todo) - len(survivors) - excused
    print(
        f"mutants {len(todo)}: caught {caught}, harmless {excused}, survived {len(survivors)}; "
        f"{100 * caught / max(1, len(todo) - excused):.1f} % of those that matter, "
        f"{100 * caught / max(1, len(todo)):.1f} % of all"
    )
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
