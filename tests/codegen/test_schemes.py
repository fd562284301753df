"""What a scheme says is what backends have: names, kernels, types."""

from __future__ import annotations

import pytest

from llmc.codegen.cpu.formats import kernel_type, linear_type, operand_type, table_type
from llmc.codegen.cpu.linear_kernels import choose_linear
from llmc.codegen.cuda.linear.params import COMPUTED, LinearShape
from llmc.ir.dims import sym
from llmc.ir.formats import SCHEMES, Groups, Packed, Scheme, WeightLayout
from llmc.ir.graph import IRError
from llmc.ir.types import DType, TensorType

TEXTS = (
    *("int8_int8g0", "int8_int8g32", "int8_int8g128", "int8_bf16", "int8g32", "int8g128f", "int8g64z", "int4g0"),
    *("int4g32", "int4g64z", "int4g128m", "int4g32mf", "int4g64_bf16", "int4g128zf_int8g32", "nl4g64", "mxfp4_bf16"),
    *("mxfp4h", "nvfp4f", "fp8g128", "fp8g128f"),
)


class Nothing:
    """A CPU without any extension."""

    def has(self, feature: str) -> bool:
        return False


@pytest.mark.parametrize("scheme", [*SCHEMES, *map(Scheme.named, TEXTS)], ids=str)
def test_the_text_of_a_scheme_names_it(scheme: Scheme) -> None:
    assert Scheme.named(str(scheme)) == scheme
    assert Scheme.named(scheme.name).name == scheme.name


@pytest.mark.parametrize("text", ["", "int8g", "int8g-1", "f32g64", "int8g64g64", "INT8", "int4zz", "int4_int4"])
def test_other_texts_name_none(text: str) -> None:
    with pytest.raises(ValueError, match=f"expected one of f32, bf16, f16, int8, .*, got '{text}'"):
        Scheme.named(text)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_any_cpu_has_a_kernel_for_every_scheme_of_cpus(scheme: Scheme) -> None:
    if kernel_type(scheme) is None:
        with pytest.raises(IRError, match=f"no CPU kernel multiplies in {scheme}: use f32, bf16, int8, int4g64, "):
            choose_linear(scheme, Nothing())
    else:
        assert "portable" in choose_linear(scheme, Nothing()).chosen.name


class Everything:
    """A CPU with every extension."""

    def has(self, feature: str) -> bool:
        return True


@pytest.mark.parametrize(("group", "chosen"), [(0, "amx-int8 tiles"), (32, "vpdpbusd"), (64, "amx-int8 tiles")])
def test_a_kernel_is_not_chosen_for_groups_that_it_does_not_take(group: int, chosen: str) -> None:
    """templates/cpu/tile_amx.h: AmxFormat says the same."""
    choice = choose_linear(Scheme.named(f"int8_int8g{group}"), Everything())
    assert choice.chosen.name == chosen
    assert (choice.rejected.get("amx-int8 tiles") == "needs groups of whole 64 columns") == (group == 32)


@pytest.mark.parametrize("scheme", COMPUTED, ids=str)
def test_cuda_kernels_take_the_elements_of_its_schemes(scheme: Scheme) -> None:
    LinearShape(scheme.operand.element, 64, 64, 64)


@pytest.mark.parametrize("scheme", [*filter(kernel_type, SCHEMES), Scheme.named("int8_int8g0")], ids=str)
def test_a_linear_reads_the_rows_that_are_written_for_it(scheme: Scheme) -> None:
    """One type stands for weights and rows in numbers of one kind; other weights' types name that of their rows."""
    layout = None if scheme.operand.group is None else Groups(scheme.operand.group)
    rows = TensorType(scheme.operand.element, (sym("T"), 64), layout)
    table = TensorType(scheme.weight.element, (100, 64), Packed(scheme, WeightLayout.PANELS))
    found = linear_type(scheme)
    assert found == table_type(table)
    assert found == operand_type(rows) or (found.startswith("Quant<") and found.endswith(f", {operand_type(rows)}>"))


@pytest.mark.parametrize(
    "table",
    [
        TensorType(DType.BF16, (100, 64), Packed(Scheme.BF16, WeightLayout.ROWS)),
        TensorType(DType.F16, (100, 64), Packed(Scheme.F16, WeightLayout.PANELS)),
        TensorType(DType.BF16, (100, 64)),
    ],
    ids=str,
)
def test_tables_that_no_cpu_kernel_reads_are_refused(table: TensorType) -> None:
    with pytest.raises(IRError, match="CPU kernel"):
        table_type(table)
