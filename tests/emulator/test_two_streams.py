"""Mutation of a program with two streams and a graph: every event, edge and wait that is left out is
caught. mutate.py counts them with the kernels' mutants."""

from __future__ import annotations

import pytest

from llmc.emulator.session import Emulator
from tests.emulator.two_streams import ORDERINGS, SCHEDULES, verdict


def test_the_whole_program_is_clean(emulator: Emulator) -> None:
    assert list(verdict(emulator, None, SCHEDULES)) == [""] * len(SCHEDULES)


@pytest.mark.parametrize("left_out", ORDERINGS)
def test_ordering_left_out_is_caught(emulator: Emulator, left_out: str) -> None:
    caught = [how for how in verdict(emulator, left_out, SCHEDULES) if how]
    print(f"{left_out}: caught in {len(caught)} of {len(SCHEDULES)} schedules: {caught[:1]}")
    assert caught
