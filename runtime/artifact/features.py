"""What this machine's CPU can do, in names that compare with an engine's target."""

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# The kernel's names for features that compilers call otherwise, after `feature_key`.
_KERNEL_NAMES = {"pni": "sse3", "abm": "lzcnt", "sha_ni": "sha", "asimd": "neon"}


def feature_key(name: str) -> str:
    """One spelling per feature: the kernel's `avx512_vnni` and clang's `avx512vnni` become the same key."""
    name = _KERNEL_NAMES.get(name, name)
    return "".join(c for c in name.lower() if c.isalnum())


@dataclass(frozen=True)
class Machine:
    """Architecture (`x86_64`, `aarch64`) and CPU features of a machine."""

    arch: str
    features: frozenset[str]

    @classmethod
    def this(cls, cpuinfo: Path = Path("/proc/cpuinfo")) -> "Machine":
        """The machine this process runs on; features are those that every listed core has."""
        try:
            text = cpuinfo.read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        return cls(platform.machine(), _common_features(text))

    def missing(self, wanted: Iterable[str]) -> list[str]:
        """Those of `wanted` that this machine lacks, in the order given."""
        have = {feature_key(name) for name in self.features}
        return [name for name in wanted if feature_key(name) not in have]


def _common_features(cpuinfo: str) -> frozenset[str]:
    cores = [
        frozenset(value.split())
        for key, _, value in (line.partition(":") for line in cpuinfo.splitlines())
        if key.strip() in ("flags", "Features")
    ]
    return frozenset.intersection(*cores) if cores else frozenset()
