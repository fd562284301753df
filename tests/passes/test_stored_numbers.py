"""Weights that are stored quantised reach the kernels as they are stored."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llmc.ir.formats import Numbers, Part, Scheme
from llmc.ir.graph import Graph
from llmc.ir.ops.constant import Apply, Dequantize, Source, Weight
from llmc.ir.ops.kernel import PackedLinear
from llmc.ir.ops.pointwise import Binary, BinaryFn
from llmc.ir.ops.shape import Concat, Slice
from llmc.ir.parser import parse
from llmc.ir.printer import print_graph
from llmc.ir.quantise import quantise
from llmc.ir.reference import weight
from llmc.ir.types import DType
from llmc.passes.choose_formats import ChooseFormats
from llmc.passes.lower import LowerLinears
from llmc.passes.rewrite import RuleLog
from llmc.passes.stored_numbers import stored_numbers, stored_part
from tests.passes.golden import graph

NUMBERS = Scheme.named("int4g32z").weight
SHAPE = (48, 64)


def source(name: str, numbers: Numbers = NUMBERS) -> Apply:
    whole = Source(name, DType.F32, SHAPE).type
    parts = [(p, numbers.part_type(p, whole)) for p in numbers.parts]
    return Apply(Dequantize(numbers), tuple(Source(name, t.dtype, t.static_shape(), part=p) for p, t in parts))


def read(leaf: Source) -> npt.NDArray[np.generic]:
    values = np.random.default_rng(len(leaf.name)).standard_normal(SHAPE).astype(np.float32)
    return quantise(values, NUMBERS).part(leaf.part or Part.DATA)


STACKED = Apply(Slice(0, 10, 80, 1), (Apply(Concat(0), (source("a"), source("bb"))),))


def test_parts_are_cut_and_stacked_like_the_matrix() -> None:
    assert stored_numbers(STACKED) == NUMBERS
    parts = [stored_part(STACKED, NUMBERS, p) for p in NUMBERS.parts]
    assert None not in parts
    whole = Apply(Dequantize(NUMBERS), tuple(p for p in parts if p is not None))
    assert np.array_equal(weight(whole, read), weight(STACKED, read))


def test_wider_scales_hold_what_is_stored_and_other_numbers_do_not() -> None:
    assert stored_part(source("a"), Scheme.named("int4g32zf").weight, Part.SCALE) is not None
    for text in ("int4g32", "int4g64z", "int4g32zb", "int8g32z"):
        assert stored_part(source("a"), Scheme.named(text).weight, Part.DATA) is None


def test_what_computes_with_the_values_is_rounded_again() -> None:
    scaled = Apply(Binary(BinaryFn.MUL), (source("a"), Source("s", DType.F32, SHAPE)))
    mixed = Apply(Concat(0), (source("a"), Source("s", DType.F32, SHAPE)))
    assert stored_numbers(scaled) is stored_numbers(mixed) is None


def lowered(as_stored: bool) -> PackedLinear:
    text = """
        inputs %x: f32[T, 64]
        %w = weight{expr=Source{name="w", dtype=f32, shape=[48, 64]}}() : f32[48, 64]
        %y = linear(%x, %w) : f32[T, 48]
        outputs %y
    """
    plain = graph(text)
    for node in plain.nodes:
        if isinstance(node.op, Weight):
            object.__setattr__(node, "op", Weight(source("w")))
    chosen = ChooseFormats(Scheme.BF16, as_stored=as_stored).run(plain, RuleLog())
    result: Graph = LowerLinears(DType.BF16).run(chosen, RuleLog())
    assert print_graph(parse(print_graph(result))) == print_graph(result)
    (found,) = (n.op for n in result.nodes if isinstance(n.op, PackedLinear))
    return found


def test_a_linear_keeps_the_numbers_that_its_weight_is_stored_in() -> None:
    assert lowered(as_stored=True).scheme == Scheme.of(NUMBERS)
    assert lowered(as_stored=False).scheme == Scheme.BF16
