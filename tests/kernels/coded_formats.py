"""The low-bit formats that kernels are tested in: one of each kind of code, group, scale, offset and input."""

from __future__ import annotations

from llmc.codegen.cpu.formats import linear_type
from llmc.ir.formats import Scheme

CODED = tuple(
    map(
        Scheme.named,
        (
            "int4g32",
            "int4g64",
            "int4g128",
            "int4g64z",
            "int4g32m",
            "int8g32",
            "mxfp4",
            "nvfp4",
            "nl4",
            "int8z",
            "int4g0",
            "int4g192_int8g0",  # the last segment is short
            "int4g32_int8g128",  # sums of inputs that are not stored
            "fp8",
            "fp8g128",
            "int4g64z_bf16",
            "mxfp4_bf16",
            "nl4g32_bf16",
            "int8_bf16",
        ),
    )
)


def header() -> str:
    """For harness_codes.cpp."""
    cases = " ".join(f"FORMAT({i}, {linear_type(scheme)})" for i, scheme in enumerate(CODED))
    return f"#pragma once\n#define LLMC_TESTED_FORMATS {cases}\n"
