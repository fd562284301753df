"""Random traces keep the invariants, and end."""

from __future__ import annotations

import pytest

from tests.runtime.scheduling_traces import check_traces


def test_many_random_traces_keep_the_invariants_and_end() -> None:
    check_traces(10_000, 2026)


@pytest.mark.soak
def test_very_many_random_traces_keep_the_invariants_and_end() -> None:
    check_traces(100_000, 2027)
