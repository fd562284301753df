"""An engine whose steps are compiled again, from the sources in its folder, with a mark around every kernel."""

from __future__ import annotations

import ctypes
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llmc.codegen.cpu.target import cpu_target
from llmc.codegen.cpu.toolchain import compile_library
from llmc.runtime.artifact.artifact import Artifact, open_artifact
from llmc.runtime.artifact.hashing import digest
from llmc.runtime.artifact.manifest import FileEntry
from llmc.runtime.cpu.device import CpuDevice
from llmc.runtime.cpu.limits import plan_limits
from llmc.runtime.loop.engine import Engine
from llmc.runtime.step.limits import LoadOptions

_ENTRY = re.compile(r"void (prefill|decode)\(void\* args, const Worker& w\) \{")
_KERNEL = re.compile(r"  // (\w+) (.*) -> (.*)")
_LINEAR = re.compile(r"linear<(\w+)(?:<\d+>)?>\(Weights\{.*?, (\d+), (\d+)\}, .*?, s\.in\.(num_tokens|num_rows),")
_ELEMENT_BYTES = {"F32": 4, "Bf16": 2, "Int8": 1}


@dataclass(frozen=True)
class Mark:
    """One kernel of one entry."""

    entry: str
    kernel: str  # packed_linear, rows, ...
    role: str  # the modules it computes, without their layer's number
    weight_bytes: int  # of a linear, else 0
    parameters: int
    per_token: bool  # whether a linear has a row per token, or one per sampled row


def _role(modules: str) -> str:
    return re.sub(r"\bmodel\.(layers\.\d+\.)?", "", modules)


def mark_sources(text: str) -> tuple[str, list[Mark]]:
    """model.cpp with marks, and what they are, in order. Follows the generator: a comment, a call, a barrier."""
    out, marks, entry, open_mark = ['#include "step_marks.h"'], list[Mark](), "", False
    for line in text.splitlines():
        if found := _ENTRY.match(line):
            entry = found.group(1)
            out += [line, "  mark_begin(w);"]
            continue
        if entry and (found := _KERNEL.match(line)):
            marks.append(Mark(entry, found.group(1), _role(found.group(2)), 0, 0, True))
            open_mark = True
        elif entry and (found := _LINEAR.search(line)):
            weights = int(found.group(2)) * int(found.group(3))
            size, per_token = weights * _ELEMENT_BYTES[found.group(1)], found.group(4) == "num_tokens"
            marks[-1] = Mark(entry, marks[-1].kernel, marks[-1].role, size, weights, per_token)
        barrier = line.strip() == "w.sync();"
        if entry and open_mark and (barrier or line == "}"):
            out.append(f"  mark_busy(w, {len(marks) - 1});")
            open_mark = False
        out.append(line)
        if entry and barrier:
            out.append(f"  mark_waited(w, {len(marks) - 1});")
        if line == "}":
            entry = ""
    return "\n".join(out) + "\n", marks


@dataclass
class _Replaced(Artifact):
    """An artifact whose library is another file."""

    library: Path = Path()

    def path(self, name: str) -> Path:
        return self.library if name == self.target.library else super().path(name)


class MarkedEngine:
    """`engine` works as the original does; `take` tells what its last step took."""

    def __init__(self, folder: Path, threads: int, cpu_time: bool) -> None:
        """`cpu_time`: marks tell each thread's own CPU time, which other processes do not lengthen much."""
        artifact = open_artifact(folder, device="cpu")
        sources = {p.name: p.read_text() for p in (folder / artifact.target.kernels / "src").iterdir()}
        sources["model.cpp"], self.marks = mark_sources(sources["model.cpp"])
        sources["step_marks.h"] = (Path(__file__).parent / "step_marks.h").read_text()
        self._folder = tempfile.TemporaryDirectory(prefix="llmc-marked-")
        library = Path(self._folder.name) / "model.so"
        flags = (f"-DSTEP_MARKS={len(self.marks)}",)
        compile_library(sources, cpu_target(artifact.target.name), library, extra_flags=flags)
        name, content = artifact.target.library, library.read_bytes()
        files = {**artifact.manifest.files, name: FileEntry(len(content), digest(content))}
        manifest = replace(artifact.manifest, files=files)
        marked = _Replaced(artifact.folder, manifest, artifact.weights, artifact.target, library=library)
        plan = plan_limits(artifact.manifest, artifact.target, LoadOptions(None, 1024, None, None, threads, None))
        self.threads = plan.threads
        device = CpuDevice(marked, plan.step, plan.num_blocks, plan.threads)
        self.engine = Engine(marked, device, plan.step.max_seqs, None)
        self._library = ctypes.CDLL(str(library))
        self._library.llmc_mark_cpu_time(int(cpu_time))

    def take(self) -> npt.NDArray[np.int32]:
        """Nanoseconds [threads, 2 (in the kernel, in the barrier after it), marks] of each entry's last step."""
        found = np.zeros((self.threads, 2, len(self.marks)), np.int32)
        self._library.llmc_marks(self.threads, ctypes.c_void_p(found.ctypes.data))
        return found
