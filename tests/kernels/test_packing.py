"""The layout of packing.py; test_linear.py holds that the C++ reads the same."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from llmc.codegen import packing
from llmc.codegen.packing import F32, Bf16, Format, Int8
from tests.kernels.test_linear import FORMATS, random


def stored(fmt: Format, n: int, k: int) -> npt.NDArray[np.float32 | np.uint16 | np.int8]:
    weight = random(1, n, k)
    if isinstance(fmt, Bf16):
        return packing.round_bf16(weight)
    return packing.quantize_channels(weight)[0] if isinstance(fmt, Int8) else weight


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.cpp)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (32, 64), (33, 65), (100, 200)])
def test_unpack_inverts_pack(fmt: Format, n: int, k: int) -> None:
    weight = stored(fmt, n, k)
    packed = packing.pack(fmt, weight)
    assert packed.size == packing.weight_bytes(fmt, n, k)
    assert np.array_equal(packing.unpack(fmt, packed, n, k), weight)


def test_element_addresses() -> None:
    """Element (n, k) lies where the docstring's array says."""
    n, k = 45, 70
    for fmt in (F32(), Bf16(), Int8(0)):
        weight = stored(fmt, n, k)
        values = packing.pack(fmt, weight).view(fmt.dtype)
        lane, padded = fmt.per_lane, fmt.pad_k(k)
        for row, column in ((0, 0), (31, 69), (32, 1), (44, 68)):
            at = row // 32 * padded * 32 + column // lane * 32 * lane + row % 32 * lane + column % lane
            expected = int(weight[row, column]) + 128 if isinstance(fmt, Int8) else weight[row, column]
            assert values[at] == expected


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.cpp)
def test_streamed_pieces_join(fmt: Format) -> None:
    weight = stored(fmt, 200, 96)
    pieces = list(
        packing.pack_stream(fmt, 200, 96, lambda a, b: weight[a:b], max_bytes=2 * packing.panel_bytes(fmt, 96))
    )
    assert len(pieces) == 4
    assert np.array_equal(np.concatenate(pieces), packing.pack(fmt, weight))


def test_quantize_channels() -> None:
    weight = random(2, 5, 64)
    weight[3] = 0
    q, scales = packing.quantize_channels(weight)
    assert np.abs(q).max(axis=1).tolist() == [127, 127, 127, 0, 127]
    assert np.max(np.abs(q * scales[:, None] - weight) / np.maximum(scales[:, None], 1e-9)) <= 0.5 + 1e-4


def test_gated_order() -> None:
    order = packing.gated_order(20)
    assert order.size == packing.gated_channels(20) == 64
    assert order[:16].tolist() == list(range(16))
    assert order[16:32].tolist() == list(range(20, 36))
    assert order[32:48].tolist() == [16, 17, 18, 19] + [-1] * 12
    assert order[48:].tolist() == [36, 37, 38, 39] + [-1] * 12


def test_refusals() -> None:
    with pytest.raises(ValueError, match="activation group 48"):
        Int8(48)
    with pytest.raises(TypeError, match="Bf16 packs uint16, got float32"):
        packing.pack(Bf16(), random(3, 4, 4))
    with pytest.raises(ValueError, match="expected 4096 bytes, got 64"):
        packing.unpack(F32(), np.zeros(64, np.uint8), 32, 32)
