"""What cuDeviceGetAttribute answers of an emulated device. The emulator knows no GPUs: whoever starts it says what
it is to be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace

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


# What there is where nobody says otherwise (LLMC_EMU_DEVICES).
H100 = Device("NVIDIA H100 80GB SXM", 9, 0, 132, 80 * GIB, 50 << 20, 227 * KIB, 228 * KIB)


def parse_device(text: str) -> Device:
    """`name=NVIDIA H100;major=9;...`: a value for every field that has no default. ValueError names one at fault."""
    given = dict(field.split("=", 1) for field in text.split(";") if "=" in field)
    known = {field.name: field for field in fields(Device)}
    missing = [name for name, field in known.items() if name not in given and field.default is MISSING]
    if missing or (unknown := [name for name in given if name not in known]):
        what = f"{', '.join(missing)} missing" if missing else f"{', '.join(unknown)} unknown"
        raise ValueError(f"{text!r} is no device: {what}; expected {';'.join(f'{name}=...' for name in known)}")
    numbers = {name: int(value) for name, value in given.items() if name != "name"}
    return Device(name=given["name"], **numbers)


def environment(devices: Sequence[Device]) -> str:
    """The value of LLMC_EMU_DEVICES that makes the driver offer these devices."""
    return "|".join(";".join(f"{k}={v}" for k, v in asdict(d).items()) for d in devices)
