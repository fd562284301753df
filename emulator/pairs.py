"""Pairs of cubin and twin: a folder in which the emulated driver finds a cubin's twin by the cubin's
content."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

_FNV_BASIS, _FNV_PRIME = 1469598103934665603, 1099511628211
_SHT_NOBITS = 8


def elf_bytes(image: bytes) -> int:
    """Length of the ELF image at the start of `image`; ValueError when there is none, or only its beginning."""
    if image[:4] != b"\x7fELF":
        raise ValueError("not an ELF image: expected a cubin as NVRTC makes it")
    try:
        end = _elf_end(image)
    except struct.error:
        end = len(image) + 1
    if end > len(image):
        raise ValueError(f"the ELF image is cut off: {len(image)} bytes are there")
    return end


def _elf_end(image: bytes) -> int:
    program, section = struct.unpack_from("<QQ", image, 32)
    program_size, programs, section_size, sections = struct.unpack_from("<HHHH", image, 54)
    end = max(section + sections * section_size, program + programs * program_size)
    for i in range(sections):
        header = section + i * section_size
        (kind,) = struct.unpack_from("<I", image, header + 4)
        offset, size = struct.unpack_from("<QQ", image, header + 24)
        if kind != _SHT_NOBITS:
            end = max(end, offset + size)
    return int(end)


def cubin_hash(image: bytes) -> int:
    """FNV-1a of the ELF image: what the driver computes in cuModuleLoadData (driver/cubin.cpp)."""
    h = _FNV_BASIS
    for byte in image[: elf_bytes(image)]:
        h = (h ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return h


def install(cubin: bytes, twin: Path, folder: Path, *, checked: bool) -> Path:
    """Puts `twin` where a driver with LLMC_EMU_TWINS=folder looks for the twin of `cubin`."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"{cubin_hash(cubin):016x}{'.checked' if checked else ''}.so"
    temporary = final.with_suffix(f".{os.getpid()}.tmp")
    shutil.copy(twin, temporary)
    os.replace(temporary, final)
    return final
