"""Generated expressions on the twins against float64: every function over every exponent, every edge of every operator.

The same text compiles for the GPU, and consists of IEEE operations only, so the bounds shown here are the GPU's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from llmc.codegen.cuda.expression import cpp_type, expression, literal, statements
from llmc.codegen.cuda.target import nvrtc
from llmc.codegen.cuda.target.capabilities import TARGETS
from llmc.codegen.cuda.target.nvrtc import TEMPLATES
from llmc.emulator.build import build_twin
from llmc.ir.arrays import NUMPY, Array, binary, round_to, unary
from llmc.ir.graph import Builder, IRError, Value
from llmc.ir.ops.constant import Scalar
from llmc.ir.ops.pointwise import Binary, BinaryFn, Cast, Unary, UnaryFn, Where
from llmc.ir.ops.reduce import Softmax
from llmc.ir.types import DType, TensorType
from tests.cuda import sass
from tests.cuda.harness import Lab

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
F32, I32, BOOL = DType.F32, DType.I32, DType.BOOL
_POINTERS = {F32: "float", I32: "int", BOOL: "bool", DType.BF16: "float", DType.F16: "float"}


def source(name: str, dtypes: list[DType], out: DType, text: str) -> str:
    """A kernel y[i] = text(x0[i], x1[i], ...)."""
    inputs = "".join(f"const {_POINTERS[d]}* p{i}, " for i, d in enumerate(dtypes))
    loads = " ".join(f"const {cpp_type(d)} x{i} = p{i}[i];" for i, d in enumerate(dtypes))
    return (
        '#include "math.cuh"\n'
        f"LLMC_KERNEL(128, 1) {name}({inputs}{_POINTERS[out]}* y, int n) {{\n"
        f"  for (int i = blockIdx.x * 128 + threadIdx.x; i < n; i += 128 * gridDim.x) {{ {loads} y[i] = {text}; }}\n"
        f"}}\nLLMC_EXPORT({name})\n"
    )


def value(dtype: DType, name: str = "") -> Value:
    return Value(TensorType(dtype, (4,)), name)


def one(op: Unary | Binary | Where | Cast, *dtypes: DType, numbers: dict[int, str] | None = None) -> tuple[str, DType]:
    """The text of one node of x0, x1, ...; `numbers`: literals in place of some of them."""
    b = Builder()
    out = b.add(op, *[value(d) for d in dtypes])
    names = [(numbers or {}).get(i, f"x{i}") for i in range(len(dtypes))]
    return expression(b.nodes[0], names), out.tensor.dtype


def run(lab: Lab, text: str, out: DType, *arrays: Array) -> npt.NDArray[Any]:
    kinds = {np.dtype(np.float32): F32, np.dtype(np.int32): I32, np.dtype(np.bool_): BOOL}
    dtypes = [kinds[a.dtype] for a in arrays]
    twin = build_twin(source("kernel", dtypes, out, text), [TEMPLATES], checked=False, name="expression.cu")
    given = [lab.emulator.array(np.ascontiguousarray(a)) for a in arrays]
    y = lab.emulator.empty(arrays[0].shape, NUMPY[out])
    lab.emulator.set_checked(False)
    lab.emulator.kernel(twin, "kernel")((8,), 128, 0, *given, y, arrays[0].size)
    got: npt.NDArray[Any] = y.numpy()
    for a in (*given, y):
        a.free()
    return got


def every_size() -> Floats:
    """Floats of every exponent and sign, denormals and the special values among them."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 15, np.uint32)
    return np.concatenate([bits.view(np.float32), special()])


def special() -> Floats:
    tiny = float(np.finfo(np.float32).tiny)
    halves = [0.0, 1e-45, 1e-40, tiny, 1e-3, 0.5, 0.625, 0.92773, 1.0, 1.5, 2.0, 3.0, 7.5, 20.0, 88.7, 104.0, 1e10]
    whole = [8388607.0, 8388609.0, 16777215.0, 16777216.0, 33554432.0, 2.0**31, 2.0**98, 2.0**127, 3.4028235e38, np.inf]
    return np.array([*halves, *whole, *(-x for x in (*halves, *whole)), np.nan], np.float32)


def near(low: float, high: float) -> Floats:
    return np.random.default_rng(1).uniform(low, high, 1 << 15).astype(np.float32)


def worst_ulp(got: Floats, expected: Doubles) -> float:
    """Largest error in units of the last place of the float32 nearest to what is expected; kinds must match."""
    with np.errstate(over="ignore"):
        nearest = expected.astype(np.float32)
    assert np.array_equal(np.isnan(got), np.isnan(nearest))
    edge = np.abs(expected) > 3.4028e38  # one ulp beyond the largest float may round to infinity
    infinite = np.isinf(nearest) & ~edge
    assert np.array_equal(got[infinite], nearest[infinite])
    check = np.isfinite(nearest) & np.isfinite(got)
    assert (check | ~np.isfinite(nearest) | edge).all(), "a finite result came out infinite"
    unit = np.spacing(np.minimum(np.abs(nearest[check]), np.float32(3e38))).astype(np.float64)
    return float(np.max(np.abs(got[check].astype(np.float64) - expected[check]) / unit, initial=0.0))


_ERF = np.vectorize(math.erf, otypes=[np.float64])
# function, bound in ulp, a range to look at closely
WHOLE_RANGE: dict[UnaryFn, tuple[Callable[[Doubles], Doubles], float, tuple[float, float]]] = {
    UnaryFn.NEG: (np.negative, 0, (-1, 1)),
    UnaryFn.ABS: (np.abs, 0, (-1, 1)),
    UnaryFn.RELU: (lambda x: np.maximum(x, 0), 0, (-1, 1)),
    UnaryFn.EXP: (np.exp, 1.5, (-104, 89)),
    UnaryFn.LOG: (np.log, 1.5, (0, 4)),
    UnaryFn.SQRT: (np.sqrt, 0.5, (0, 4)),
    UnaryFn.RSQRT: (lambda x: 1 / np.sqrt(x), 1.5, (0, 4)),
    UnaryFn.RECIPROCAL: (lambda x: 1 / x, 0.5, (-4, 4)),
    UnaryFn.TANH: (np.tanh, 2, (-10, 10)),
    UnaryFn.ERF: (_ERF, 1.5, (-4, 4)),
    UnaryFn.SIN: (np.sin, 0.51, (-4e7, 4e7)),
    UnaryFn.COS: (np.cos, 0.51, (-4e7, 4e7)),
}


@pytest.mark.parametrize("fn", WHOLE_RANGE, ids=lambda fn: fn.value)
def test_function(lab: Lab, fn: UnaryFn) -> None:
    reference, bound, dense = WHOLE_RANGE[fn]
    x = np.concatenate([every_size(), near(*dense)])
    text, out = one(Unary(fn), F32)
    with np.errstate(all="ignore"):
        assert worst_ulp(run(lab, text, out, x), np.asarray(reference(x.astype(np.float64)))) <= bound


@pytest.mark.parametrize(
    "fn", [UnaryFn.SIGMOID, UnaryFn.SILU, UnaryFn.GELU, UnaryFn.GELU_TANH, UnaryFn.SOFTPLUS], ids=lambda fn: fn.value
)
def test_activation(lab: Lab, fn: UnaryFn) -> None:
    """As torch's own float32 formulas: relative to the argument's size where two parts cancel."""
    text, out = one(Unary(fn), F32)
    x = near(-30, 30)
    with np.errstate(all="ignore"):
        want = unary(fn, x.astype(np.float64)).astype(np.float64)
    error = np.abs(run(lab, text, out, x) - want) / (np.abs(want) + 1e-2 * np.abs(x) + 1e-6)
    assert error.max() < 3e-6
    edges = np.array([np.nan, 0.0, 3e38, -50.0, np.inf], np.float32)
    with np.errstate(all="ignore"):
        assert np.allclose(run(lab, text, out, edges), unary(fn, edges), rtol=1e-6, atol=1e-20, equal_nan=True)


def test_every_function_is_tested() -> None:
    activations = {UnaryFn.SIGMOID, UnaryFn.SILU, UnaryFn.GELU, UnaryFn.GELU_TANH, UnaryFn.SOFTPLUS, UnaryFn.NOT}
    assert activations | set(WHOLE_RANGE) == set(UnaryFn)


def pairs() -> tuple[Floats, Floats]:
    a, b = np.meshgrid(special(), special())
    return a.reshape(-1), b.reshape(-1)


@pytest.mark.parametrize("fn", [f for f in BinaryFn if f is not BinaryFn.POW], ids=lambda fn: fn.value)
def test_operator(lab: Lab, fn: BinaryFn) -> None:
    """Exactly numpy's results; of two zeros a maximum may take either."""
    a, b = pairs()
    text, out = one(Binary(fn), F32, F32)
    want = binary(fn, a, b)
    assert np.array_equal(run(lab, text, out, a, b), want, equal_nan=want.dtype != np.bool_)
    p, q = a > 0, b > 1
    if fn in (BinaryFn.AND, BinaryFn.OR, BinaryFn.EQ, BinaryFn.NE):
        text, out = one(Binary(fn), BOOL, BOOL)
        assert np.array_equal(run(lab, text, out, p, q), binary(fn, p, q))
    if fn is not BinaryFn.DIV:
        i, j = (x.reshape(-1).astype(np.int32) for x in np.meshgrid(np.arange(-9, 9), np.arange(-9, 9)))
        text, out = one(Binary(fn), I32, I32)
        assert np.array_equal(run(lab, text, out, i, j), binary(fn, i, j))


def test_pow(lab: Lab) -> None:
    a, b = pairs()
    random = np.random.default_rng(2)
    a = np.concatenate([a, random.uniform(0, 100, 1 << 15).astype(np.float32)])
    b = np.concatenate([b, random.uniform(-20, 20, 1 << 15).astype(np.float32)])
    text, out = one(Binary(BinaryFn.POW), F32, F32)
    with np.errstate(all="ignore"):
        want = np.power(a.astype(np.float64), b.astype(np.float64))
    assert worst_ulp(run(lab, text, out, a, b), want) <= 0.51


@pytest.mark.parametrize(("power", "bound"), [(2.0, 0.5), (3.0, 2), (-1.0, 0.5), (0.5, 0.51)])
def test_pow_of_a_number(lab: Lab, power: float, bound: float) -> None:
    x = every_size()
    text, out = one(Binary(BinaryFn.POW), F32, F32, numbers={1: literal(power)})
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), np.full(x.shape, power))  # a lone 0.5 would be numpy's square root
    assert worst_ulp(run(lab, text, out, x), want) <= bound
    assert ("pow_f32" in text) == (power == 0.5)


def test_masks_choices_and_casts(lab: Lab) -> None:
    x = every_size()
    y, mask = np.roll(x, 1), x > 0.25
    text, out = one(Where(), BOOL, F32, F32)
    assert np.array_equal(run(lab, text, out, mask, x, y), np.where(mask, x, y), equal_nan=True)
    text, out = one(Unary(UnaryFn.NOT), BOOL)
    assert np.array_equal(run(lab, text, out, mask), ~mask)
    for dtype in (DType.BF16, DType.F16, BOOL, F32):
        text, out = one(Cast(dtype), F32)
        with np.errstate(all="ignore"):
            want = round_to(x, dtype)
        assert np.array_equal(run(lab, text, out, x), want, equal_nan=dtype is not BOOL), dtype
    ints = np.arange(-4, 1 << 12, dtype=np.int32) * 4099
    for given in (mask, ints):
        for dtype in (F32, BOOL, I32):
            text, out = one(Cast(dtype), I32 if given is ints else BOOL)
            assert np.array_equal(run(lab, text, out, given), given.astype(NUMPY[dtype]))


def test_literals_come_back_to_the_same_bits(lab: Lab) -> None:
    numbers = [*special().tolist(), 1e300, -1e300, 0.1]
    x = np.zeros(1, np.float32)
    got = np.concatenate([run(lab, f"x0 * 0.0f + {literal(v)}", F32, x) for v in numbers])
    with np.errstate(over="ignore"):
        assert np.array_equal(got, np.array(numbers).astype(np.float32), equal_nan=True)


def test_statements_are_one_per_node() -> None:
    b, x = Builder(), value(F32, "x")
    doubled = b.add(Binary(BinaryFn.MUL), x, b.add(Scalar(2.0)))
    out = b.add(Binary(BinaryFn.ADD), doubled, b.add(Unary(UnaryFn.TANH), doubled))
    text = {x: "x0"}
    assert statements(b.nodes, text) == [
        "const float v0 = (x0 * 2.0f);",
        "const float v1 = tanh_f32(v0);",
        "const float v2 = (v0 + v1);",
    ]
    assert text[out] == "v2"


@pytest.mark.parametrize(
    ("op", "dtypes", "message"),
    [
        (Binary(BinaryFn.DIV), (I32, I32), "DIV"),
        (Unary(UnaryFn.EXP), (I32,), "EXP"),
        (Binary(BinaryFn.ADD), (DType.BF16, DType.BF16), r"bf16\[4\]"),
        (Cast(I32), (F32,), "to i32 at no module"),
        (Cast(DType.I8), (F32,), "to i8 at no module"),
        (Softmax(), (F32,), "Softmax"),
    ],
)
def test_what_has_no_expression_is_named(op: Unary, dtypes: tuple[DType, ...], message: str) -> None:
    with pytest.raises(IRError, match=message):
        one(op, *dtypes)


@pytest.mark.parametrize("arch", TARGETS)
def test_functions_use_no_local_memory(arch: str) -> None:
    """All of them in one source; each a kernel without a stack frame or a spill."""
    kernels = [source(f"u_{fn.value}", [F32], *one(Unary(fn), F32)[::-1]) for fn in UnaryFn]
    kernels += [source(f"b_{fn.value}", [F32, F32], *one(Binary(fn), F32, F32)[::-1]) for fn in BinaryFn]
    compiled = nvrtc.compile_cubin("".join(kernels), arch)
    assert not compiled.log
    found = sass.resources(compiled.cubin)
    counts = sass.opcodes(compiled.cubin)
    assert len(found) == len(UnaryFn) + len(BinaryFn)
    for name, resources in found.items():
        assert not sass.matching(counts[name], "LDL") and not sass.matching(counts[name], "STL"), name
        assert resources.stack == 0, f"{name}: {resources}"
