"""An engine whose steps are compiled again, from the sources in its folder, with a mark around every kernel."""

from __future__ import annotations

import ctypes
import json
import re
import tempfile
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from types import TracebackType

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
_LINEAR = re.compile(r"linear<.*>\(Weights\{.*?, (\d+), (\d+)\}, .*?, s\.in\.(num_tokens|num_rows),")
_READ_ROUNDS = 7


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
    """model.cpp with marks, and what they are, in order, but for their bytes. Follows the generator: a comment, a call,
    a barrier."""
    out, marks, entry, open_mark = ['#include "step_marks.h"'], list[Mark](), "", False
    for line in text.splitlines():
        if found := _ENTRY.match(line):
            entry = found.group(1)
            out += [line, "  mark_begin(w);"]
            continue
        barrier = line.strip() == "w.sync();"
        if entry and open_mark and (barrier or line == "}" or _KERNEL.match(line)):
            out.append(f"  mark_busy(w, {len(marks) - 1});")
            open_mark = False
        if entry and (found := _KERNEL.match(line)):
            marks.append(Mark(entry, found.group(1), _role(found.group(2)), 0, 0, True))
            open_mark = True
        elif entry and (found := _LINEAR.search(line)):
            parameters = int(found.group(1)) * int(found.group(2))
            marks[-1] = replace(marks[-1], parameters=parameters, per_token=found.group(3) == "num_tokens")
        out.append(line)
        if entry and barrier:
            out.append(f"  mark_waited(w, {len(marks) - 1});")
        if line == "}":
            entry = ""
    return "\n".join(out) + "\n", marks


def sized(marks: list[Mark], artifact: Artifact) -> list[Mark]:
    """With the bytes of what linears read, which the plans name: marks and launches are in one order."""
    spans = artifact.weights.spans
    found = []
    for entry in dict.fromkeys(mark.entry for mark in marks):
        plan = json.loads((artifact.folder / artifact.target.plans / f"{entry}.json").read_text())
        of_entry = [mark for mark in marks if mark.entry == entry]
        for mark, launch in zip(of_entry, plan["launches"], strict=True):
            size = sum(spans[name][1] - spans[name][0] for name in launch["weights"]) if mark.parameters else 0
            found.append(replace(mark, weight_bytes=size))
    return found


@dataclass
class _Replaced(Artifact):
    """An artifact whose library is another file."""

    library: Path = Path()

    def path(self, name: str) -> Path:
        return self.library if name == self.target.library else super().path(name)


class MarkedEngine:
    """`engine` works as the original does; `take` tells what its last step took."""

    def __init__(self, folder: Path, threads: int | None, max_seq_len: int, cpu_time: bool = False) -> None:
        """`cpu_time`: marks tell each thread's own CPU time, which other processes do not lengthen much.

        Raises EngineError subclasses, ToolchainError."""
        artifact = open_artifact(folder, device="cpu")
        sources = {p.name: p.read_text() for p in (folder / artifact.target.kernels / "src").iterdir()}
        sources["model.cpp"], marks = mark_sources(sources["model.cpp"])
        sources["step_marks.h"] = files("llmc.compiler.profile").joinpath("step_marks.h").read_text()
        self.marks = sized(marks, artifact)
        self._folder = tempfile.TemporaryDirectory(prefix="llmc-marked-")
        library = Path(self._folder.name) / "model.so"
        flags = (f"-DSTEP_MARKS={len(self.marks)}",)
        compile_library(sources, cpu_target(artifact.target.name), library, extra_flags=flags)
        name, content = artifact.target.library, library.read_bytes()
        entries = {**artifact.manifest.files, name: FileEntry(len(content), digest(content))}
        manifest = replace(artifact.manifest, files=entries)
        marked = _Replaced(artifact.folder, manifest, artifact.weights, artifact.target, library=library)
        plan = plan_limits(manifest, artifact.target, LoadOptions(None, max_seq_len, None, None, threads, None))
        self.threads = plan.threads
        self.kv = artifact.target.kv
        self.weight_bytes = artifact.weights.data_bytes
        self._artifact = artifact
        device = CpuDevice(marked, plan.step, plan.num_blocks, plan.threads)
        self.engine = Engine(marked, device, plan.step.max_seqs, None)
        self._library = ctypes.CDLL(str(library))
        self._library.llmc_mark_cpu_time(int(cpu_time))

    def take(self) -> npt.NDArray[np.int32]:
        """Nanoseconds [threads, 2 (in the kernel, in the barrier after it), marks] of each entry's last step."""
        found = np.zeros((self.threads, 2, len(self.marks)), np.int32)
        self._library.llmc_marks(self.threads, ctypes.c_void_p(found.ctypes.data))
        return found

    def read_seconds(self) -> float:
        """A plain read of all weights by as many threads: the median."""
        weights, times = self._artifact.weights, np.zeros(_READ_ROUNDS, np.int64)
        address, size = ctypes.c_void_p(weights.address), ctypes.c_int64(weights.data_bytes)
        self._library.llmc_mark_read(address, size, self.threads, _READ_ROUNDS, ctypes.c_void_p(times.ctypes.data))
        return float(np.median(times)) / 1e9

    def close(self) -> None:
        self.engine.close()
        self._folder.cleanup()

    def __enter__(self) -> MarkedEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
