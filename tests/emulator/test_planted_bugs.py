"""Every planted bug is reported in every schedule, by the line that is wrong; its repaired twin never is."""

from __future__ import annotations

import re

import pytest
from corpus import BUGS, translation_unit
from planted import Bug

from llmc.codegen.cuda.target.nvrtc import TEMPLATES
from llmc.emulator.build import build_twin
from llmc.emulator.session import THREE_SCHEDULES, CudaError, Emulator, Kernel

REQUIRED = 15


def _kernel(emulator: Emulator, bug: Bug, planted: bool) -> Kernel:
    twin = build_twin(translation_unit(planted), [TEMPLATES], checked=True, name="bugs.cu")
    kernel = emulator.kernel(twin, f"k{BUGS.index(bug)}")
    kernel.bug = planted  # type: ignore[attr-defined]
    emulator.set_checked(True)
    return kernel


@pytest.mark.parametrize("bug", BUGS, ids=lambda b: b.name.replace(" ", "-"))
def test_planted_bug_is_reported(emulator: Emulator, bug: Bug) -> None:
    kernel = _kernel(emulator, bug, True)
    for schedule in THREE_SCHEDULES:
        emulator.set_schedule(schedule)
        with pytest.raises(CudaError) as caught:
            bug.run(emulator, kernel)
        assert re.search(bug.expect, str(caught.value)), str(caught.value)
        if "// HERE" in bug.source:
            named = re.findall(r"(?:bug\.cu:|line )(\d+)", str(caught.value))
            assert str(bug.line()) in named, (bug.line(), str(caught.value))


@pytest.mark.parametrize("bug", BUGS, ids=lambda b: b.name.replace(" ", "-"))
def test_repaired_kernel_is_clean(emulator: Emulator, bug: Bug) -> None:
    kernel = _kernel(emulator, bug, False)
    for schedule in THREE_SCHEDULES:
        emulator.set_schedule(schedule)
        bug.run(emulator, kernel)


def test_the_corpus_is_large_enough() -> None:
    assert len({b.name for b in BUGS}) == len(BUGS) >= REQUIRED
