"""What mirrors abi.h, against the C compiler's view of abi.h."""

import ctypes
import subprocess

import pytest
from engine_folders import ABI_FOLDER

from llmc.runtime.artifact import manifest
from llmc.runtime.cpu import library as abi
from llmc.runtime.kv import blocks
from llmc.runtime.step.row_sampling import SAMPLING_RECORD

Layout = tuple[int, dict[str, tuple[int, int]]]


def layout(struct: type[ctypes.Structure]) -> Layout:
    """Its size, and offset and size of each field."""
    places = {name: getattr(struct, name) for name, *_ in struct._fields_}
    return ctypes.sizeof(struct), {name: (place.offset, place.size) for name, place in places.items()}


def sampling_record() -> Layout:
    """A record of a step is the struct, whose last four bytes have a name there."""
    places = {name: (SAMPLING_RECORD.fields[name][1], SAMPLING_RECORD[name].itemsize) for name in SAMPLING_RECORD.names}
    return SAMPLING_RECORD.itemsize, places | {"padding": (SAMPLING_RECORD.itemsize - 4, 4)}


STRUCTS = {"LlmcSampling": sampling_record()} | {
    struct.__name__: layout(struct) for struct in (abi.LlmcStep, abi.LlmcKvPool, abi.LlmcConfig)
}


@pytest.fixture(scope="module")
def compiled(cxx, tmp_path_factory):
    """name -> value, as the compiler prints it."""
    folder = tmp_path_factory.mktemp("abi")
    lines = ['printf("LLMC_ABI_VERSION %d\\n", LLMC_ABI_VERSION);', 'printf("MAX %d\\n", LLMC_MAX_LOGPROBS);']
    lines.append('printf("NO_BLOCK %d\\n", LLMC_NO_BLOCK);')
    for name, (_, fields) in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field in fields:
            where = f"offsetof({name}, {field}), sizeof((({name}*)0)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", {where});')
    source = folder / "print.cc"
    body = "\n".join(lines)
    source.write_text(f'#include "abi.h"\n#include <stddef.h>\n#include <stdio.h>\nint main() {{\n{body}\n}}\n')
    subprocess.run([*cxx, f"-I{ABI_FOLDER}", str(source), "-o", str(folder / "print")], check=True)
    output = subprocess.run([str(folder / "print")], check=True, capture_output=True, text=True).stdout
    return {line.split()[0]: tuple(map(int, line.split()[1:])) for line in output.splitlines()}


@pytest.mark.parametrize("name", STRUCTS)
def test_sizes_and_offsets(compiled, name):
    size, fields = STRUCTS[name]
    assert compiled[name] == (size,)
    assert {field: compiled[f"{name}.{field}"] for field in fields} == fields


def test_constants(compiled):
    assert compiled["LLMC_ABI_VERSION"] == (manifest.ABI,)
    assert compiled["MAX"] == (manifest.MAX_LOGPROBS,)
    assert compiled["NO_BLOCK"] == (blocks.NO_BLOCK,)


@pytest.mark.parametrize("name", STRUCTS)
def test_no_field_of_the_header_is_left_out(name):
    text = (ABI_FOLDER / "abi.h").read_text()
    body = text.split(f"struct {name} {{")[1].split("};")[0]
    declared = [line.split(";")[0].split()[-1].lstrip("*") for line in body.splitlines() if ";" in line.split("//")[0]]
    assert declared == list(STRUCTS[name][1])
