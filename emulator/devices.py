"""Devices that can be emulated: what cuDeviceGetAttribute answers. From NVIDIA's data sheets and the CUDA
Programming Guide, table of technical specifications per compute capability."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace

KIB, GIB = 1 << 10, 1 << 30


@dataclass(frozen=True)
class Device:
    """Sizes in bytes; `smem_optin` is the most dynamic shared memory a block may opt in to."""

    name: str
    major: int
    minor: int
    sms: int
    memory_bytes: int
    l2_bytes: int
    smem_optin: int
    smem_sm: int
    smem_block: int = 48 * KIB
    regs_sm: int = 65536
    threads_sm: int = 2048
    clock_khz: int = 1_700_000

    def with_memory(self, memory_bytes: int) -> Device:
        return replace(self, memory_bytes=memory_bytes)

    def runs(self, arch: str) -> bool:
        """Whether cubins for `arch` load (sm_90a, with a suffix: on that very compute capability; else on later
        minor ones as well)."""
        found = re.fullmatch(r"sm_(\d+)(\d)([af]?)", arch)
        if found is None:
            return False
        major, minor = int(found[1]), int(found[2])
        if found[3]:
            return (major, minor) == (self.major, self.minor)
        return major == self.major and minor <= self.minor


A100 = Device("NVIDIA A100", 8, 0, 108, 80 * GIB, 40 << 20, 163 * KIB, 164 * KIB)
L40S = Device("NVIDIA L40S", 8, 9, 142, 48 * GIB, 96 << 20, 99 * KIB, 100 * KIB, threads_sm=1536)
RTX4090 = Device("NVIDIA GeForce RTX 4090", 8, 9, 128, 24 * GIB, 72 << 20, 99 * KIB, 100 * KIB, threads_sm=1536)
H100 = Device("NVIDIA H100", 9, 0, 132, 80 * GIB, 50 << 20, 227 * KIB, 228 * KIB)
H200 = Device("NVIDIA H200", 9, 0, 132, 141 * GIB, 50 << 20, 227 * KIB, 228 * KIB)
B200 = Device("NVIDIA B200", 10, 0, 148, 180 * GIB, 126 << 20, 227 * KIB, 228 * KIB)

BY_NAME = {"a100": A100, "l40s": L40S, "rtx4090": RTX4090, "h100": H100, "h200": H200, "b200": B200}


def for_arch(arch: str) -> Device | None:
    """The first device of that very compute capability (sm_90a: 9.0)."""
    return next((d for d in BY_NAME.values() if f"sm_{d.major}{d.minor}" == arch.rstrip("af")), None)


def environment(devices: list[Device]) -> str:
    """The value of LLMC_EMU_DEVICES that makes the driver offer these devices."""
    return "|".join(";".join(f"{k}={v}" for k, v in asdict(d).items()) for d in devices)
