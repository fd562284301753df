"""Random weights: sizes and spread by shape, the same whoever asks for which part."""

from __future__ import annotations

import numpy as np
import pytest

from llmc.codegen.packing import Packing, stored_bytes, widen_bf16
from llmc.codegen.random_weights import BLOCK_VALUES, RandomWeights
from llmc.ir.formats import Part, Scheme, WeightLayout
from llmc.ir.ops.constant import Apply, Origin, Pack, Quantize, Source, WeightExpr
from llmc.ir.ops.pointwise import Cast
from llmc.ir.ops.shape import Concat
from llmc.ir.types import DType

ROWS = (Scheme.BF16, WeightLayout.ROWS)
INTS = Source("i", DType.F32, (40, 70))


def matrix(name: str, n: int, k: int) -> WeightExpr:
    return Apply(Cast(DType.BF16), (Source(name, DType.F32, (n, k)),))


def data(weights: RandomWeights, expr: WeightExpr) -> np.ndarray:
    return np.concatenate(list(weights.pieces(expr)))


def values(weights: RandomWeights, n: int, k: int, name: str = "w") -> np.ndarray:
    bits = Packing(*ROWS).unpack(data(weights, Apply(Pack(*ROWS), (matrix(name, n, k),))), n, k)
    return widen_bf16(bits)  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [64, 1024, 4096])
def test_a_matrix_has_the_variance_of_its_inputs(k: int) -> None:
    found = values(RandomWeights({}), 3000, k)
    assert np.isfinite(found).all()
    assert abs(float(found.std()) * k**0.5 - 1) < 0.02 and abs(float(found.mean())) < 0.02 / k**0.5


def test_a_matrix_larger_than_the_block_is_filled_to_its_end() -> None:
    n, k = 2 * BLOCK_VALUES // 512 + 5, 512
    found = values(RandomWeights({}), n, k)
    assert found.shape == (n, k) and (found[-1] != 0).any()
    assert not np.array_equal(found[0], found[1])  # rows are no copies of each other


def test_the_seed_and_the_name_decide() -> None:
    one = values(RandomWeights({}, 1), 8, 64)
    assert np.array_equal(one, values(RandomWeights({}, 1), 8, 64))
    assert not np.array_equal(one, values(RandomWeights({}, 2), 8, 64))
    assert not np.array_equal(one, values(RandomWeights({}, 1), 8, 64, "v"))


@pytest.mark.parametrize("shape", [(37,), (37, 24)])
def test_rows_are_those_of_the_whole(shape: tuple[int, ...]) -> None:
    weights, source = RandomWeights({}), Source("s", DType.F32, shape)
    whole = weights.read(source, None)
    assert whole.shape == shape and whole.dtype == np.float32
    assert np.array_equal(weights.read(source, (5, 21)), whole[5:21])


def test_vectors_are_near_one() -> None:
    found = RandomWeights({}).read(Source("norm", DType.F32, (5000,)), None)
    assert abs(float(found.mean()) - 1) < 0.01 and 0.08 < float(found.std()) < 0.12


def test_what_the_module_computes_is_true() -> None:
    freq = np.linspace(1, 0, 32, dtype=np.float32)
    expr = Source("inv_freq", DType.F32, (32,), Origin.BUFFER)
    assert data(RandomWeights({"inv_freq": freq}), expr).tobytes() == freq.tobytes()


@pytest.mark.parametrize(
    "expr",
    [
        Apply(Pack(*ROWS), (matrix("padded", 9, 20),)),
        Apply(Pack(*ROWS), (Apply(Concat(0), (matrix("q", 9, 24), matrix("k", 3, 24))),)),
        Apply(
            Pack(Scheme.INT8, WeightLayout.PANELS),
            (Apply(Quantize(Scheme.INT8.weight, Part.DATA), (Source("i", DType.F32, (40, 70)),)),),
        ),
        Apply(Quantize(Scheme.INT8.weight, Part.SCALE), (Source("i", DType.F32, (40, 70)),)),
        matrix("table", 50, 12),
    ],
)
def test_bytes_of_every_kind_of_weight(expr: WeightExpr) -> None:
    assert data(RandomWeights({}), expr).size == stored_bytes(expr.type)


def test_padding_is_zero() -> None:
    raw = data(RandomWeights({}), Apply(Pack(*ROWS), (matrix("padded", 9, 20),))).view(np.uint16).reshape(9, 24)
    assert (raw[:, :20] != 0).any(1).all() and not raw[:, 20:].any()
