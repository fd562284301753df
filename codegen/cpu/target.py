"""CPU targets as data: what a machine must have, and how code for it is compiled.

Feature names are those of /proc/cpuinfo. Code asks `target.has("avx512_bf16")`, never for a target's name.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class TargetError(ValueError):
    """A target that does not exist, or a machine that is none; the message is one line for people."""


@dataclass(frozen=True)
class Extension:
    """An instruction-set extension that kernels use beyond their level's baseline."""

    suffix: str  # in a target's name: x86-64-v4+vnni
    features: tuple[str, ...]  # /proc/cpuinfo
    zig: tuple[str, ...]  # names in zig's -mcpu
    flags: tuple[str, ...]  # gcc and clang
    macro: str  # tells simd.h


@dataclass(frozen=True)
class Level:
    """A baseline instruction set."""

    name: str
    features: tuple[str, ...]
    zig: str
    flags: tuple[str, ...]
    macro: str | None
    vector_bytes: int
    extensions: tuple[Extension, ...] = ()
    arch: str = "x86_64"


_V3 = ("avx", "avx2", "abm", "bmi1", "bmi2", "f16c", "fma", "movbe", "popcnt", "sse4_2")
_V4 = ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")

VNNI = Extension("vnni", ("avx512_vnni",), ("avx512vnni",), ("-mavx512vnni",), "LLMC_VNNI")
BF16 = Extension("bf16", ("avx512_bf16",), ("avx512bf16",), ("-mavx512bf16",), "LLMC_BF16")
AMX = Extension(
    "amx",
    ("amx_tile", "amx_bf16", "amx_int8"),
    ("amx_tile", "amx_bf16", "amx_int8"),
    ("-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    "LLMC_AMX",
)

AVX_VNNI = Extension("avxvnni", ("avx_vnni",), ("avxvnni",), ("-mavxvnni",), "LLMC_VNNI")
DOTPROD = Extension("dotprod", ("asimddp",), ("dotprod",), ("-march=armv8.2-a+dotprod",), "LLMC_DOTPROD")
I8MM = Extension("i8mm", ("i8mm",), ("i8mm",), ("-march=armv8.2-a+dotprod+i8mm",), "LLMC_I8MM")

# Best first: the first that a machine has is its own.
LEVELS = (
    Level("x86-64-v4", _V3 + _V4, "x86_64_v4", ("-march=x86-64-v4",), "LLMC_AVX512", 64, (VNNI, BF16, AMX)),
    Level("x86-64-v3", _V3, "x86_64_v3", ("-march=x86-64-v3",), "LLMC_AVX2", 32, (AVX_VNNI,)),
    Level("generic", ("sse2",), "x86_64", ("-march=x86-64",), None, 16),
    Level("aarch64", ("asimd",), "generic", ("-march=armv8-a",), "LLMC_NEON", 16, (DOTPROD, I8MM), "aarch64"),
)
NATIVE = "cpu"  # the machine that builds
DEFAULT_L2_BYTES = 1 << 20


@dataclass(frozen=True)
class CpuTarget:
    """A CPU that an engine is built for; every field is a fact about it."""

    name: str
    arch: str
    features: tuple[str, ...]  # sorted; all of them must be there at load
    triple: str
    mcpu: str  # zig's -mcpu
    flags: tuple[str, ...]  # what gcc and clang take instead
    macros: tuple[tuple[str, str], ...]  # for the kernels' headers
    vector_bytes: int
    l2_bytes: int

    def has(self, feature: str) -> bool:
        return feature in self.features


def _compose(name: str, level: Level, extensions: Iterable[Extension], l2_bytes: int) -> CpuTarget:
    chosen = tuple(extensions)
    features = set(level.features).union(*(e.features for e in chosen))
    macros = [level.macro] if level.macro else []
    macros += [e.macro for e in chosen]
    return CpuTarget(
        name=name,
        arch=level.arch,
        features=tuple(sorted(features)),
        triple=f"{level.arch}-linux-gnu.2.28",
        mcpu="+".join([level.zig, *(z for e in chosen for z in e.zig)]),
        flags=level.flags + tuple(f for e in chosen for f in e.flags),
        macros=(*((m, "1") for m in macros), ("LLMC_L2_BYTES", str(l2_bytes))),
        vector_bytes=level.vector_bytes,
        l2_bytes=l2_bytes,
    )


def machine_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Features of this machine's first CPU. TargetError where they cannot be read."""
    try:
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                return frozenset(value.split())
    except OSError as error:
        raise TargetError(f"cannot read this machine's CPU features: {error}") from error
    raise TargetError(f"{cpuinfo} has no line 'flags' or 'Features': name a target instead of '{NATIVE}'")


def machine_l2_bytes(size: Path = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")) -> int:
    """L2 bytes of this machine's first CPU, DEFAULT_L2_BYTES where it does not say."""
    try:
        text = size.read_text().strip()
        return int(text.removesuffix("K")) << 10 if text.endswith("K") else int(text)
    except (OSError, ValueError):
        return DEFAULT_L2_BYTES


def native_target(features: frozenset[str], l2_bytes: int, machine: str | None = None) -> CpuTarget:
    """The best target for a machine with these features."""
    arch = machine if machine is not None else platform.machine()
    levels = [level for level in LEVELS if level.arch == arch]
    if not levels:
        raise TargetError(f"no kernels for {arch}: build for one of {', '.join(cpu_names())}")
    for level in levels:
        if features.issuperset(level.features):
            extensions = [e for e in level.extensions if features.issuperset(e.features)]
            return _compose(NATIVE, level, extensions, l2_bytes)
    raise TargetError(f"this {arch} machine has no {' or '.join(levels[-1].features)}")


def cpu_names() -> tuple[str, ...]:
    """What find_cpu takes: `cpu`, each level, and each level with any of its extensions."""
    names = [NATIVE]
    for level in LEVELS:
        names.append("+".join([level.name, *(f"[{e.suffix}]" for e in level.extensions)]))
    return tuple(names)


def find_cpu(name: str) -> CpuTarget | None:
    """The CPU target called `name`, for example `cpu`, `x86-64-v3`, `x86-64-v4+vnni+bf16`; None where there is none.

    TargetError where `cpu` is asked for on a machine that cannot be one.
    """
    if name == NATIVE:
        return native_target(machine_features(), machine_l2_bytes())
    level_name, *suffixes = name.split("+")
    for level in LEVELS:
        if level.name != level_name:
            continue
        known = {e.suffix: e for e in level.extensions}
        if set(suffixes) <= set(known) and len(set(suffixes)) == len(suffixes):
            return _compose(name, level, [e for e in level.extensions if e.suffix in suffixes], DEFAULT_L2_BYTES)
    return None


def cpu_target(name: str) -> CpuTarget:
    """What find_cpu finds; TargetError where there is no such CPU target."""
    found = find_cpu(name)
    if found is None:
        raise TargetError(f"unknown CPU target {name!r}: expected one of {', '.join(cpu_names())}")
    return found


def missing_features(target: CpuTarget, features: frozenset[str]) -> tuple[str, ...]:
    """What `target` needs and a machine with `features` lacks, sorted."""
    return tuple(f for f in target.features if f not in features)
