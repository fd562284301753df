"""abi.py against the C compiler's view of abi.h."""

import ctypes
import subprocess

import pytest
from engine_folders import ABI_FOLDER

from llmc.runtime.artifact.artifact import manifest
from llmc.runtime.cpu import library as abi
from llmc.runtime.kv import blocks

STRUCTS = (abi.LlmcSampling, abi.LlmcStep, abi.LlmcKvPool, abi.LlmcConfig)


@pytest.fixture(scope="module")
def compiled(cxx, tmp_path_factory):
    """name -> value, as the compiler prints it."""
    folder = tmp_path_factory.mktemp("abi")
    lines = ['printf("LLMC_ABI_VERSION %d\\n", LLMC_ABI_VERSION);', 'printf("MAX %d\\n", LLMC_MAX_LOGPROBS);']
    lines.append('printf("NO_BLOCK %d\\n", LLMC_NO_BLOCK);')
    for struct in STRUCTS:
        name = struct.__name__
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in struct._fields_:
            where = f"offsetof({name}, {field}), sizeof((({name}*)0)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", {where});')
    source = folder / "print.cc"
    body = "\n".join(lines)
    source.write_text(f'#include "abi.h"\n#include <stddef.h>\n#include <stdio.h>\nint main() {{\n{body}\n}}\n')
    subprocess.run([*cxx, f"-I{ABI_FOLDER}", str(source), "-o", str(folder / "print")], check=True)
    output = subprocess.run([str(folder / "print")], check=True, capture_output=True, text=True).stdout
    return {line.split()[0]: tuple(map(int, line.split()[1:])) for line in output.splitlines()}


@pytest.mark.parametrize("struct", STRUCTS)
def test_sizes_and_offsets(compiled, struct):
    assert compiled[struct.__name__] == (ctypes.sizeof(struct),)
    for name, _ in struct._fields_:
        field = getattr(struct, name)
        assert compiled[f"{struct.__name__}.{name}"] == (field.offset, field.size), name


def test_constants(compiled):
    assert compiled["LLMC_ABI_VERSION"] == (manifest.ABI,)
    assert compiled["MAX"] == (abi.MAX_LOGPROBS,)
    assert compiled["NO_BLOCK"] == (blocks.NO_BLOCK,)


@pytest.mark.parametrize("struct", STRUCTS)
def test_no_field_of_the_header_is_left_out(struct):
    text = (ABI_FOLDER / "abi.h").read_text()
    body = text.split(f"struct {struct.__name__} {{")[1].split("};")[0]
    declared = [line.split(";")[0].split()[-1].lstrip("*") for line in body.splitlines() if ";" in line.split("//")[0]]
    assert declared == [name for name, _ in struct._fields_]
