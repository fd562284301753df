"""Every kernel against float64 at twelve or more shapes, in three schedules, under the race detector;
then the
same kernels through the other compiler and unchecked on all cores."""

from __future__ import annotations

import dataclasses

import pytest
from catalog import ALL
from harness import Lab, Shape
from shapes import quick

from llmc.codegen.cuda.kernel import KernelParams
from llmc.emulator.build import HostCompiler
from llmc.emulator.session import THREE_SCHEDULES

CASES = quick()


def _name(case: tuple[KernelParams, Shape]) -> str:
    p, shape = case
    return f"{p.template}-{p.label}-" + "-".join(f"{k}{v}" for k, v in shape.items()).replace(" ", "")


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_checked(lab: Lab, case: tuple[KernelParams, Shape]) -> None:
    for schedule in THREE_SCHEDULES:
        lab.run(*case, schedule)


def test_every_kernel_has_twelve_shapes() -> None:
    for template in {p.template for p in ALL}:
        shapes = {repr(shape) + repr(p) for p, shape in CASES if p.template == template}
        assert len(shapes) >= 12, template


@pytest.mark.parametrize("compiler", [HostCompiler.gxx(), HostCompiler.zig()], ids=lambda c: c.name)
@pytest.mark.parametrize("checked", [False, True], ids=["fast", "checked"])
def test_both_compilers(lab: Lab, compiler: HostCompiler, checked: bool) -> None:
    other = dataclasses.replace(lab, compiler=compiler, checked=checked, _kernels={}, _arrays=[])
    one_each = {p.template: (p, shape) for p, shape in CASES}
    for p, shape in one_each.values():
        for schedule in THREE_SCHEDULES:
            other.run(p, shape, schedule)
