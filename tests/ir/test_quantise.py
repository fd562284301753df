"""Rounding to quantised numbers: against its own largest error, and torch for fp8."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from llmc.ir.codes import VALUES, code_values, nearest_codes
from llmc.ir.formats import Numbers, Part, Scheme
from llmc.ir.quantise import Quantised, quantise
from llmc.ir.types import DType

RANDOM = np.random.default_rng(0)
TEXTS = ["int8", "int8g32", "int8g64z", "int4g0", "int4g32", "int4g64z", "int4g128m", "nl4", "mxfp4", "nvfp4", "fp8"]
# The largest error in steps of the scale: half a code, half the widest gap between values, or what the shorter side of
# a range that is not symmetric lacks.
STEP = {"nl4": 14.1, "mxfp4": 2.0, "nvfp4": 1.0, "fp8": 16.0}
STEP |= dict.fromkeys(["int4g0", "int4g32", "int8g64z", "int4g64z"], 1.01)


def numbers(text: str) -> Numbers:
    return Scheme.named(text).weight


def test_e4m3_is_torchs() -> None:
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(VALUES[DType.F8_E4M3], theirs, equal_nan=True)


def test_the_nearest_e4m3_is_torchs_within_its_range() -> None:
    x = np.concatenate([RANDOM.standard_normal(4000) * 10.0**e for e in range(-4, 3)]).astype(np.float32)
    x = np.concatenate([x[np.abs(x) <= 448], np.asarray([0, 17, 19, 448, -448, 2**-10, 3 * 2**-10], np.float32)])
    theirs = torch.from_numpy(x).to(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(code_values(nearest_codes(x, DType.F8_E4M3), DType.F8_E4M3), theirs)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("columns", [64, 100, 128])
def test_rounding_is_to_nearest(text: str, columns: int) -> None:
    x = (RANDOM.standard_normal((5, columns)) * 0.1).astype(np.float32)
    found = quantise(x, numbers(text))
    assert found.part(Part.DATA).shape == x.shape
    steps = np.abs(np.repeat(found.scales, numbers(text).group or columns, 1)[:, :columns])
    assert (np.abs(found.floats() - x) <= steps * STEP.get(text, 0.51) + 1e-9).all()
    again = Quantised.of([found.part(p) for p in numbers(text).parts], numbers(text))
    assert np.array_equal(again.floats(), found.floats())


@pytest.mark.parametrize("text", TEXTS)
def test_zeros_and_the_smallest_numbers_stay_finite(text: str) -> None:
    x = np.zeros((3, 64), np.float32)
    x[1], x[2, 5] = 1e-30, 1.0
    found = quantise(x, numbers(text)).floats()
    assert np.isfinite(found).all() and (found[0] == 0).all()
    assert found[2, 5] == pytest.approx(1.0, rel=2.0**-7)
    assert np.abs(found[1]).max() < 1e-7


@pytest.mark.parametrize("text", ["int4g64z", "int8g64z", "int4g64m"])
def test_offsets_reach_ranges_that_are_not_around_zero(text: str) -> None:
    x = (RANDOM.random((4, 64)) + 1).astype(np.float32)
    found, symmetric = (quantise(x, numbers(t)).floats() for t in (text, text[:-1]))
    assert np.abs(found - x).max() <= np.abs(symmetric - x).max()


def test_parts_have_the_shapes_of_their_types() -> None:
    x = RANDOM.standard_normal((6, 40)).astype(np.float32)
    found = quantise(x, numbers("int4g32z"))
    assert found.part(Part.SCALE).shape == found.part(Part.OFFSET).shape == (6, 2)
    assert found.part(Part.OFFSET).dtype == np.int8 and found.codes.max() <= 15
    with pytest.raises(ValueError, match="i4 with a f16 scale for 32 columns have no offsets"):
        quantise(x, numbers("int4g32")).part(Part.OFFSET)
