"""Formats under a budget: what gets more bits, in which order, and what no choice keeps to."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from llmc.compiler.quality.budget import Budget
from llmc.compiler.quality.choose import Chosen, Measured, OverBudget, bits, choose, finer, in_steps, mean_bits
from llmc.compiler.quality.units import Part, Unit
from llmc.ir.formats import Scheme

INT4, INT8, BF16 = Scheme.INT4, Scheme.INT8, Scheme.BF16


def unit(name: str, rows: int) -> Unit:
    return Unit((Part(name, (f"{name}.weight",), (rows, 64)),))


def measured(*kls: float, rows: int = 64) -> list[Measured]:
    units = [unit(f"layer.{i}", rows) for i in range(len(kls))]
    return [Measured(u, {INT4: kl, INT8: kl / 256, BF16: kl / 65536}) for u, kl in zip(units, kls, strict=True)]


def schemes(chosen: list[Chosen]) -> list[str]:
    return [str(c.scheme) for c in chosen]


def test_a_budget_is_bits_or_kl() -> None:
    assert Budget.named("bits=4.8") == Budget(bits=4.8) and Budget.named("kl=5e-2") == Budget(kl=0.05)
    assert str(Budget(kl=0.05)) == "kl=0.05"
    for text in ("", "4.8", "bits", "bits=", "bits=-1", "kl=x", "bits=4,kl=1"):
        with pytest.raises(ValueError, match="expected bits=N"):
            Budget.named(text)


def test_the_dearest_gets_more_bits() -> None:
    found = choose(measured(0.1, 0.4, 0.2), INT4, Budget(bits=6.0))
    assert schemes(found) == ["int4g64", "int8", "int4g64"] and 4.25 < mean_bits(found) <= 6.0
    assert schemes(choose(measured(0.1, 0.4, 0.2), INT4, Budget(kl=0.15))) == ["int4g64", "int8", "int8"]
    assert schemes(choose(measured(0.1, 0.4, 0.2), INT4, Budget(kl=1.0))) == ["int4g64"] * 3


def test_by_what_is_saved_for_each_bit() -> None:
    """The small one costs less, and saves more for what it takes."""
    large, small = measured(0.4, rows=640)[0], measured(0.2)[0]
    small = replace(small, unit=unit("small", 64))
    assert schemes(choose([large, small], INT4, Budget(bits=4.8))) == ["int4g64", "int8"]


def test_equal_ones_in_the_order_of_the_model() -> None:
    assert schemes(choose(measured(0.2, 0.2, 0.2), INT4, Budget(bits=7.1))) == ["int8", "int8", "int4g64"]


def test_no_upgrade_is_left_out_that_the_budget_holds() -> None:
    """Against all choices, where units are alike in size: none has less KL with as many bits."""
    units = measured(0.3, 0.05, 0.11)
    for budget in (4.25, 5.0, 5.6, 7.0, 9.0, 16.0):
        found = choose(units, INT4, Budget(bits=budget))
        every = (
            [Chosen(m.unit, s, m.kl[s]) for m, s in zip(units, s_, strict=True)]
            for s_ in product(units[0].kl, repeat=3)
        )
        best = min(sum(c.kl for c in one) for one in every if mean_bits(one) <= budget)
        assert mean_bits(found) <= budget and sum(c.kl for c in found) <= 1.01 * best, budget


def test_what_no_choice_keeps_to() -> None:
    with pytest.raises(OverBudget, match=r"bits=4: int4g64 takes 4\.25 for each weight already"):
        choose(measured(0.1), INT4, Budget(bits=4.0))
    with pytest.raises(OverBudget, match="kl=1e-09: the finest formats come to"):
        choose(measured(0.1), INT4, Budget(kl=1e-9))


def test_what_is_no_number_in_a_format_has_another() -> None:
    """Of weights beyond what a scale of 16 bits holds, whatever else would gain."""
    huge, usual = measured(float("inf"), 0.4)
    huge = replace(huge, kl={INT4: in_steps(float("inf")), INT8: in_steps(0.1), BF16: 0.0})
    for budget in (Budget(bits=6.4), Budget(kl=0.6)):
        assert schemes(choose([usual, huge], INT4, budget)) == ["int4g64", "int8"]
    with pytest.raises(OverBudget, match=r"bits=5: layer\.0 in int4g64 has values beyond its scales"):
        choose([usual, huge], INT4, Budget(bits=5))


def test_the_last_digits_decide_nothing() -> None:
    assert in_steps(0.0123) == in_steps(0.0123 * (1 + 1e-6)) and in_steps(-1e-12) == in_steps(0.0) == 0.0
    assert abs(in_steps(0.0123) / 0.0123 - 1) < 0.05


def test_formats_that_are_finer() -> None:
    assert list(map(str, finer(INT4))) == ["int4g32", "int8", "bf16"]
    assert list(map(str, finer(INT8))) == ["bf16"] and finer(BF16) == ()
    assert bits(Unit((Part("a", ("a",), (2, 128)), Part("b", ("b",), (1, 128)))), INT4) == 3 * 128 * 4.25
