"""The layout of packing.py; test_linear.py holds that the C++ reads the same."""

from __future__ import annotations

import numpy as np
import pytest

from llmc.codegen.packing import Bits, Packing, ScalePacking, round_bf16
from llmc.ir.formats import Part, Scheme, WeightLayout
from llmc.ir.graph import IRError
from llmc.ir.quantise import quantise
from llmc.ir.types import DType
from tests.kernels.test_linear import FORMATS, random

PANELS, ROWS = WeightLayout.PANELS, WeightLayout.ROWS


def stored(fmt: Scheme, n: int, k: int) -> Bits:
    weight = random(1, n, k)
    match fmt.weight.element:
        case DType.F32:
            return weight
        case DType.BF16:
            return round_bf16(weight)
        case DType.F16:
            return weight.astype(np.float16).view(np.uint16)
    return quantise(weight, fmt.weight).part(Part.DATA)  # type: ignore[return-value]


CODED = tuple(map(Scheme.named, ("int4g32", "int4g64z", "int4_bf16", "nl4", "mxfp4", "nvfp4", "fp8")))
PLACES = [
    (f, o) for f in (*FORMATS, Scheme.F16, *CODED) for o in WeightLayout if (f, o) not in {(c, ROWS) for c in CODED}
]


@pytest.mark.parametrize(("fmt", "order"), PLACES, ids=str)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (32, 64), (33, 65), (100, 200)])
def test_unpack_inverts_pack(fmt: Scheme, order: WeightLayout, n: int, k: int) -> None:
    packing, weight = Packing(fmt, order), stored(fmt, n, k)
    packed = packing.pack(weight)
    assert packed.size == packing.num_bytes(n, k)
    assert np.array_equal(packing.unpack(packed, n, k), weight)


@pytest.mark.parametrize("fmt", [Scheme.F32, Scheme.BF16, Scheme.INT8], ids=str)
def test_element_addresses(fmt: Scheme) -> None:
    """Element (n, k) lies where the docstring's array says."""
    n, k = 45, 70
    lane, padded = {"f32": (1, 70), "bf16": (2, 96), "int8": (4, 128)}[fmt.name]
    weight = stored(fmt, n, k)
    values = Packing(fmt, PANELS).pack(weight).view(np.uint8 if fmt.name == "int8" else weight.dtype)
    for row, column in ((0, 0), (31, 69), (32, 1), (44, 68)):
        at = row // 32 * padded * 32 + column // lane * 32 * lane + row % 32 * lane + column % lane
        assert values[at] == (int(weight[row, column]) + 128 if fmt.name == "int8" else weight[row, column])


@pytest.mark.parametrize("fmt", [Scheme.F32, Scheme.BF16, Scheme.F16, Scheme.INT8], ids=str)
def test_rows_for_cuda_are_padded_to_16_bytes(fmt: Scheme) -> None:
    weight = stored(fmt, 3, 33)
    rows = Packing(fmt, ROWS).pack(weight).reshape(3, -1)
    size = 33 * weight.dtype.itemsize
    assert rows.shape[1] == -(-size // 16) * 16 and not rows[:, size:].any()
    assert rows[:, :size].tobytes() == weight.tobytes()


def test_addresses_of_4_bits() -> None:
    fmt, (n, k) = Scheme.named("int4g32"), (45, 70)
    weight = stored(fmt, n, k)
    values = Packing(fmt, PANELS).pack(weight)
    for row, column in ((0, 0), (31, 69), (32, 1), (44, 68), (7, 4), (7, 12)):
        byte = row // 32 * 128 * 32 // 2 + column // 8 * 32 * 4 + row % 32 * 4 + column % 4
        assert values[byte] >> (4 * (column % 8 // 4)) & 15 == int(weight[row, column]) + 8


def test_scales_of_groups_lie_in_panels() -> None:
    fmt, (n, groups) = Scheme.named("int4g32"), (45, 3)  # 96 columns, padded to 128
    scales = random(1, n, groups).astype(np.float16)
    packing = ScalePacking(fmt, DType.F16)
    values = packing.pack(scales.view(np.uint16)).view(np.float16).reshape(2, 4, 32)
    assert packing.num_bytes(n, groups) == values.nbytes
    for row in range(n):
        assert np.array_equal(values[row // 32, :3, row % 32], scales[row])
    assert not values[:, 3].any() and not values[1, :, 13:].any()


@pytest.mark.parametrize("fmt", [*FORMATS, *CODED], ids=str)
def test_streamed_pieces_join(fmt: Scheme) -> None:
    packing, weight = Packing(fmt, PANELS), stored(fmt, 200, 96)
    pieces = list(packing.pack_stream(200, 96, lambda a, b: weight[a:b], max_bytes=2 * packing.panel_bytes(96)))
    assert len(pieces) == 4
    assert np.array_equal(np.concatenate(pieces), packing.pack(weight))


def test_refusals() -> None:
    with pytest.raises(ValueError, match="activation group 48"):
        Scheme.named("int8_int8g48")
    with pytest.raises(TypeError, match="bf16 packs uint16, got float32"):
        Packing(Scheme.BF16, PANELS).pack(random(3, 4, 4))
    with pytest.raises(IRError, match="no kernels read int4g64 in rows"):
        Packing(Scheme.INT4, ROWS)
    with pytest.raises(ValueError, match="in f32: expected 4096 bytes, got 64"):
        Packing(Scheme.F32, PANELS).unpack(np.zeros(64, np.uint8), 32, 32)
