"""Rounding that makes up for itself: less error in the output than rounding to nearest, in the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from llmc.compiler.quality.gptq import gptq
from llmc.ir.formats import Scheme
from llmc.ir.quantise import nearest, quantise

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("name", ["int4", "int4g32", "int4g32z", "int4g32m", "int8", "nl4", "fp8g64"])
def test_the_output_is_closer_than_by_rounding_to_nearest(name: str) -> None:
    numbers = Scheme.named(name).weight
    weight = RNG.standard_normal((48, 160)).astype(np.float32)  # the last group is short
    x = RNG.standard_normal((400, 24)) @ RNG.standard_normal((24, 160)) + 0.3 * RNG.standard_normal((400, 160))
    x[:, 7] = 0  # an input that nothing ever reaches
    found = gptq(weight, x.T @ x, numbers)
    plain = quantise(weight, numbers)
    assert found.codes.shape == weight.shape and found.codes.dtype == plain.codes.dtype
    assert found.scales.shape == plain.scales.shape
    ours, theirs = (np.linalg.norm(x @ (q.floats() - weight).T) for q in (found, plain))
    assert ours < 0.75 * theirs
    groups = found.scales.shape[1]
    at = 0 if groups == 1 else 2  # codes are what the numbers have: those nearest to what they stand for
    columns = slice(0, 160) if groups == 1 else slice(at * numbers.group, (at + 1) * numbers.group)  # type: ignore[operator]
    values = found.floats().astype(np.float32)[:, columns]
    offsets = None if found.offsets is None else found.offsets[:, at]
    again = nearest(values[:, None], found.scales[:, at, None], None if offsets is None else offsets[:, None], numbers)
    assert np.array_equal(again[:, 0], found.codes[:, columns])


def test_where_inputs_do_not_go_together_it_is_rounding_to_nearest() -> None:
    weight = RNG.standard_normal((8, 64)).astype(np.float32)
    numbers = Scheme.INT4.weight
    found, plain = gptq(weight, np.eye(64), numbers), quantise(weight, numbers)
    assert np.array_equal(found.codes, plain.codes) and np.array_equal(found.scales, plain.scales)
