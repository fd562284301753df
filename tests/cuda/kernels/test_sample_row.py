"""SAMPLE_ROW in Python, in the twin and in the cubin: one layout."""

from __future__ import annotations

import re

import numpy as np
import pytest

from llmc.codegen.cuda.target.capabilities import TARGETS
from llmc.codegen.cuda.target.nvrtc import TEMPLATES, compile_cubin
from llmc.emulator.build import build_twin
from llmc.runtime.artifact.manifest import MAX_LOGPROBS
from llmc.runtime.cuda.step.sampling import SAMPLE_ROW
from tests.cuda.harness import Lab

FIELDS = [(name, offset, dtype.itemsize) for name, (dtype, offset, *_) in (SAMPLE_ROW.fields or {}).items()]


def kernel(body: str) -> str:
    return f'#include "sample_row.cuh"\nLLMC_KERNEL(1, 1) layout(int* out) {{\n{body}\n}}\nLLMC_EXPORT(layout)\n'


def test_the_twin_s_sizes_and_offsets(lab: Lab) -> None:
    lines = ["out[0] = sizeof(SampleRow); out[1] = kMaxLogprobs;"]
    for i, (name, *_) in enumerate(FIELDS):
        lines.append(f"out[{2 + 2 * i}] = __builtin_offsetof(SampleRow, {name});")
        lines.append(f"out[{3 + 2 * i}] = sizeof(SampleRow::{name});")
    twin = build_twin(kernel("\n".join(lines)), [TEMPLATES], checked=False, name="layout.cu")
    out = lab.emulator.array(np.full(2 + 2 * len(FIELDS), -1, np.int32))
    lab.emulator.kernel(twin, "layout")((1,), 1, 0, out)
    got = out.numpy().tolist()
    out.free()
    assert got[:2] == [SAMPLE_ROW.itemsize, MAX_LOGPROBS]
    assert got[2:] == [n for _, *place in FIELDS for n in place]


@pytest.mark.parametrize("arch", TARGETS)
def test_the_cubin_s_offsets(arch: str) -> None:
    """Where a kernel loads each field from."""
    source = f'#include "sample_row.cuh"\nstatic_assert(sizeof(SampleRow) == {SAMPLE_ROW.itemsize}, "size");\n'
    for name, *_ in FIELDS:
        source += f"LLMC_KERNEL(1, 1) k_{name}(const SampleRow* row, double* out) {{ *out = double(row->{name}); }}\n"
    ptx = compile_cubin(source, arch).ptx
    for name, offset, _ in FIELDS:
        load = re.search(
            rf"\.entry k_{name}\((?:(?!\.entry).)*?ld\.global\.\w+\s+%\w+, \[%rd\d+(?:\+(\d+))?\]", ptx, re.S
        )
        assert load and int(load[1] or 0) == offset, name


def test_no_field_of_the_header_is_left_out() -> None:
    body = (TEMPLATES / "sample_row.cuh").read_text().split("struct SampleRow {")[1].split("};")[0]
    declared = [m[1] for line in body.splitlines() if (m := re.match(r"\s*\w+ (\w+);", line))]
    assert declared == [name for name, *_ in FIELDS]
