"""What a cubin's machine code shows without a GPU: registers, stack, local memory, instructions by opcode.
Read with NVIDIA's cuobjdump and nvdisasm from their PyPI wheels."""

from __future__ import annotations

import collections
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmc.codegen.cuda.kernel import Budget

# Instructions on global memory, by generic address or by tensor map, into registers and into shared memory.
_GLOBAL = frozenset(
    {"LD", "LDG", "LDGSTS", "ST", "STG", "ATOM", "ATOMG", "RED", "REDG", "UTMALDG", "UTMASTG", "UBLKCP"}
)


@dataclass(frozen=True)
class Resources:
    """Per kernel; stack and local memory in bytes per thread, shared in static bytes per block."""

    registers: int
    stack: int
    shared: int
    local: int


def tool(name: str) -> Path:
    """cuobjdump or nvdisasm out of the wheels nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm."""
    for entry in sys.path:
        path = Path(entry) / "nvidia" / "cu13" / "bin" / name
        if path.is_file():
            return path
    raise FileNotFoundError(f"{name}: not in any installed wheel; install llmc[test]")


def _run(name: str, options: Sequence[str], cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin)
        f.flush()
        return subprocess.run([tool(name), *options, f.name], capture_output=True, text=True, check=True).stdout


def resources(cubin: bytes) -> dict[str, Resources]:
    """By kernel name."""
    out = _run("cuobjdump", ["--dump-resource-usage"], cubin)
    found = re.finditer(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", out)
    return {m[1]: Resources(*map(int, m.groups()[1:])) for m in found}


def instructions(cubin: bytes) -> dict[str, list[str]]:
    """Full opcodes with modifiers (`LDGSTS.E.BYPASS.128`) per kernel, in the order of their addresses."""
    found: dict[str, list[str]] = {}
    kernel: list[str] | None = None
    for line in _run("nvdisasm", ["-c"], cubin).splitlines():
        if m := re.match(r"\.text\.(\S+):", line):
            kernel = found.setdefault(m[1], [])
        elif kernel is not None and (
            m := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9.]*[A-Za-z0-9_.]*)", line)
        ):
            kernel.append(m[1])
    return found


def opcodes(cubin: bytes) -> dict[str, collections.Counter[str]]:
    """The same, counted."""
    return {name: collections.Counter(found) for name, found in instructions(cubin).items()}


def matching(counts: collections.Counter[str], prefix: str) -> int:
    """Instructions whose opcode has every dot-separated part of `prefix`, in order (modifiers may lie
    between)."""
    pattern = re.compile(r"(?:\.\w+)*\.".join(re.escape(part) for part in prefix.split(".")) + r"(\.|$)")
    return sum(n for op, n in counts.items() if pattern.match(op))


def early_accesses(found: Sequence[str]) -> list[str]:
    """Of a kernel's instructions, accesses of global memory that stand ahead of its first griddepcontrol.wait, and
    loads past the caches' coherence (ld.global.nc) wherever they stand: neither sees for certain what the kernel in
    front wrote. Empty for a kernel that does not wait."""
    waits = [at for at, op in enumerate(found) if op == "ACQBULK"]
    ahead = found[: waits[0]] if waits else []
    past = [op for op in found if waits and op.startswith("LDG.") and "CONSTANT" in op.split(".")]
    return [op for op in ahead if op.split(".")[0] in _GLOBAL] + past


def violations(cubin: bytes, kernel: str, budget: Budget) -> list[str]:
    """Everything in which the kernel exceeds its budget; empty when it keeps it."""
    return judge(resources(cubin)[kernel], opcodes(cubin)[kernel], budget)


def judge(r: Resources, counts: collections.Counter[str], budget: Budget) -> list[str]:
    found = []
    if r.local or r.stack:
        found.append(f"{r.stack} B of stack and {r.local} B of local memory per thread, expected none")
    for op in ("STL", "LDL"):
        if n := matching(counts, op):
            found.append(f"{n} {op} instructions (spills), expected none")
    if r.registers > budget.max_registers:
        found.append(f"{r.registers} registers, budget {budget.max_registers}")
    if (total := counts.total()) > budget.max_instructions:
        found.append(f"{total} instructions, budget {budget.max_instructions}")
    for op, least in budget.opcodes.items():
        if (n := matching(counts, op)) < least:
            found.append(f"{n} x {op}, expected at least {least}")
    for op, expected in budget.exact.items():
        if (n := matching(counts, op)) != expected:
            found.append(f"{n} x {op}, expected exactly {expected}")
    return found
