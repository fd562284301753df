"""Fault points: off, counted, and known by name."""

from __future__ import annotations

import pytest

from llmc.runtime.process.fault_points import FAULT_POINTS, NAMES, FaultPoints, InjectedFault


def test_none_strikes_unless_it_is_asked_for() -> None:
    assert not any(FAULT_POINTS.strikes(name) for name in NAMES for _ in range(3))


def test_every_third_time() -> None:
    points = FaultPoints("text=3,submit=1")
    assert [points.strikes("text") for _ in range(7)] == [False, False, True, False, False, True, False]
    with pytest.raises(InjectedFault, match="submit"):
        points.reach("submit")


def test_a_point_that_is_none() -> None:
    with pytest.raises(ValueError, match="there is no point 'nowhere'; there are submit"):
        FaultPoints("nowhere=1")
