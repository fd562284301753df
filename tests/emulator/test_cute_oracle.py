"""The emulator's maps against CuTe's: operands are laid out by CuTe's tables, run through the emulated instructions of
every shape and type that templates/cuda/device.cuh has, and the result, read back by CuTe's tables, must be A * B^T."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn

from llmc.codegen.cuda.target.nvrtc import TEMPLATES
from llmc.emulator.build import build_twin, cuda_include
from llmc.emulator.session import THREE_SCHEDULES, Emulator

HERE = Path(__file__).parent
DTYPES = {"bf16": bfloat16, "f16": np.float16, "e4m3": float8_e4m3fn, "s8": np.int8}
COLUMNS = (8, 16, 32, 64, 128, 192, 256)  # N of the wgmmas in device.cuh
SWIZZLES = {"sw128": 128, "sw64": 64, "sw32": 32}
Tables = dict[str, np.ndarray]


def _accumulator(kind: str) -> type:
    return np.int32 if kind == "s8" else np.float32


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    headers = [Path(p) / "cutlass_library" / "source" / "include" for p in sys.path]
    cutlass = next((h for h in headers if (h / "cute" / "tensor.hpp").is_file()), None)
    cuda = cuda_include()
    if cutlass is None or not (cuda / "crt" / "host_defines.h").is_file() or not (cuda / "cccl").is_dir():
        pytest.skip("needs the CUTLASS headers: pip install llmc[oracle]")
    folder = tmp_path_factory.mktemp("cute")
    includes = [f"-I{path}" for path in (cutlass, cuda, cuda / "cccl")]
    source, program, found = str(HERE / "cute_tables.cpp"), str(folder / "tables"), folder / "tables.txt"
    subprocess.run(["g++", "-O0", "-std=c++17", "-w", *includes, source, "-o", program], check=True)
    subprocess.run([program, found], check=True, stdout=subprocess.DEVNULL)
    lines = found.read_text().splitlines()
    return {name: np.array(values.split(), np.int64) for name, values in (line.split(":") for line in lines)}


@pytest.fixture(scope="module")
def twin() -> Path:
    lines = [
        '#include "oracle_kernels.cuh"',
        "LDMATRIX(ldmatrix, ldmatrix_x4)",
        "LDMATRIX(ldmatrix_trans, ldmatrix_x4_trans)",
    ]
    for kind in DTYPES:
        acc = "int" if kind == "s8" else "float"
        lines += [f"FRAGMENT({kind}, {acc})", *(f"WGMMA({kind}, {acc}, {n})" for n in COLUMNS)]
    return build_twin("\n".join(lines) + "\n", [TEMPLATES, HERE], checked=True, name="oracle.cu")


def _values(kind: str, rows: int, k: int, seed: int) -> np.ndarray:
    """Small integers: exact in every format and every order of summation."""
    return np.random.default_rng(seed).integers(-4, 5, (rows, k)).astype(DTYPES[kind])


def _gather(matrix: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Elements in the table's order (column-major indices into the matrix), as 32-bit words."""
    return np.ascontiguousarray(matrix.T.reshape(-1)[table]).view(np.uint32)


def _scatter(values: np.ndarray, table: np.ndarray, rows: int, columns: int) -> np.ndarray:
    out = np.full(rows * columns, np.nan)
    out[table] = values.astype(np.float64)
    return out.reshape(columns, rows).T


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    product: np.ndarray = a.astype(np.float64) @ b.astype(np.float64).T
    return product


@pytest.mark.parametrize("kind", DTYPES)
def test_mma_fragments(emulator: Emulator, tables: Tables, twin: Path, kind: str) -> None:
    k = 32 // np.dtype(DTYPES[kind]).itemsize
    a, b = _values(kind, 16, k, 1), _values(kind, 8, k, 2)
    operands = [_gather(m, tables[f"{kind}.{name}"]) for m, name in ((a, "A"), (b, "B"))]
    for schedule in THREE_SCHEDULES:
        emulator.set_schedule(schedule)
        c = emulator.empty((128,), _accumulator(kind))
        emulator.kernel(twin, f"frag_{kind}")((1,), 32, 0, *map(emulator.array, operands), c)
        assert np.array_equal(_scatter(c.numpy(), tables[f"{kind}.C"], 16, 8), _product(a, b))


@pytest.mark.parametrize("name", ["ldmatrix", "ldmatrix_trans"])
def test_ldmatrix(emulator: Emulator, tables: Tables, twin: Path, name: str) -> None:
    rows = np.arange(256, dtype=np.uint16)  # of 16 bytes, a lane's each; every element another
    bits = np.unpackbits(rows.view(np.uint8), bitorder="little")
    expected = np.packbits(bits[tables[name]], bitorder="little").view(np.uint32)
    for schedule in THREE_SCHEDULES:
        emulator.set_schedule(schedule)
        to = emulator.empty((128,), np.uint32)
        emulator.kernel(twin, name)((1,), 32, 512, emulator.array(rows.view(np.uint32)), to)
        assert np.array_equal(to.numpy(), expected)


def _place(tables: Tables, swizzle: str, kind: str, rows: int) -> np.ndarray:
    """[rows, elements of 128 bytes]: the byte offset of each element."""
    return tables[f"{swizzle}.{kind}.{rows}"].reshape(rows, -1)


def _image(matrix: np.ndarray, place: np.ndarray) -> np.ndarray:
    out = np.zeros(matrix.size, matrix.dtype)
    out[place // matrix.itemsize] = matrix
    return out.view(np.uint32)


def _steps(place: np.ndarray) -> list[int]:
    """Where each 32 bytes of K begin."""
    return [int(place[0, i * place.shape[1] // 4]) for i in range(4)]


def _descriptor(tables: Tables, swizzle: str, kind: str) -> int:
    """Of address 0, for any number of rows: of a single group of eight CuTe leaves out how far the next one is."""
    (desc,) = (int(d) for d in tables[f"{swizzle}.{kind}.16.desc"])
    assert all(int(tables[f"{swizzle}.{kind}.{n}.desc"][0]) == desc for n in COLUMNS[1:])
    return desc % 2**64


def _check_wgmma(
    emulator: Emulator, twin: Path, name: str, operands: list[np.ndarray], desc: int, steps: list[int]
) -> list[np.ndarray]:
    """The accumulators of each schedule, thread by thread."""
    _, kind, columns = name.split("_")
    results = []
    for schedule in THREE_SCHEDULES:
        emulator.set_schedule(schedule)
        c = emulator.empty((64 * int(columns),), _accumulator(kind))
        args = [*map(emulator.array, operands), c, desc.to_bytes(8, "little")]
        smem = 128 * (64 + int(columns))
        emulator.kernel(twin, name)((1,), 128, smem, *args, emulator.array(np.array(steps, np.int32)))
        results.append(c.numpy())
    return results


@pytest.mark.parametrize("n", COLUMNS)
@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_wgmma_descriptors(emulator: Emulator, tables: Tables, twin: Path, swizzle: str, kind: str, n: int) -> None:
    k = 128 // np.dtype(DTYPES[kind]).itemsize
    a, b = _values(kind, 64, k, 3), _values(kind, n, k, 4)
    places = [_place(tables, swizzle, kind, rows) for rows in (64, n)]
    images = [_image(m, place) for m, place in zip((a, b), places, strict=True)]
    steps = [at for place in places for at in _steps(place)]
    desc = _descriptor(tables, swizzle, kind)
    for c in _check_wgmma(emulator, twin, f"ss_{kind}_{n}", images, desc, steps):
        assert np.array_equal(_scatter(c, tables[f"wgmma.{kind}.{n}.C"], 64, n), _product(a, b))


@pytest.mark.parametrize("n", COLUMNS)
@pytest.mark.parametrize("kind", DTYPES)
def test_wgmma_a_from_registers(emulator: Emulator, tables: Tables, twin: Path, kind: str, n: int) -> None:
    k = 128 // np.dtype(DTYPES[kind]).itemsize
    a, b = _values(kind, 64, k, 5), _values(kind, n, k, 6)
    table, place = tables[f"wgmma.{kind}.{n}.A"], _place(tables, "sw128", kind, n)
    fragments = np.concatenate([_gather(part, table) for part in np.split(a, 4, axis=1)])
    operands, desc = [fragments, _image(b, place)], _descriptor(tables, "sw128", kind)
    for c in _check_wgmma(emulator, twin, f"rs_{kind}_{n}", operands, desc, _steps(place)):
        assert np.array_equal(_scatter(c, tables[f"wgmma.{kind}.{n}.C"], 64, n), _product(a, b))


def test_the_descriptor_that_kernels_make(emulator: Emulator, tables: Tables, twin: Path) -> None:
    to = emulator.empty((1,), np.uint64)
    emulator.kernel(twin, "descriptor")((1,), 32, 0, to)
    assert {int(to.numpy()[0])} == {_descriptor(tables, "sw128", kind) for kind in DTYPES}


@pytest.mark.parametrize("rows", COLUMNS)
@pytest.mark.parametrize("kind", ["bf16", "s8"])  # of two bytes and of one
@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_tma_swizzles(emulator: Emulator, tables: Tables, twin: Path, swizzle: str, kind: str, rows: int) -> None:
    """A box as wide as the swizzle: the first atom of each group of rows."""
    span = SWIZZLES[swizzle]
    width = span // np.dtype(DTYPES[kind]).itemsize
    matrix = np.random.default_rng(7).integers(0, 256, (rows, span)).astype(np.uint8).view(DTYPES[kind])
    expected = _image(matrix, _place(tables, swizzle, kind, rows)[:, :width])
    for schedule in THREE_SCHEDULES:
        emulator.set_schedule(schedule)
        source, to = emulator.array(matrix), emulator.empty((rows * span // 4,), np.uint32)
        box = emulator.tensor_map(source, (rows, width), span)
        emulator.kernel(twin, "tma")((1,), 128, rows * span + 16, box, to, rows * span)
        assert np.array_equal(to.numpy(), expected)
