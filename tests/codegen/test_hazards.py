"""Edges order every conflict, and deleting any of them leaves one unordered; so do meetings of workers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmc.codegen.hazards import Access, Span, edges, meetings

SPANS = st.builds(
    lambda space, start, size, part: Span(space, start, start + size, part),
    st.sampled_from(["T", "R", "kv0"]),
    st.integers(0, 6),
    st.integers(1, 3),
    st.sampled_from(["", "", "chunks", "singles"]),
)
ACCESSES = st.lists(
    st.builds(lambda r, w: Access(tuple(r), tuple(w)), st.lists(SPANS, max_size=3), st.lists(SPANS, max_size=2)),
    max_size=12,
)


def reachable(found: list[tuple[int, ...]]) -> list[set[int]]:
    """The launches that each launch comes after, through any chain of edges."""
    before: list[set[int]] = []
    for after in found:
        before.append({k for j in after for k in (j, *before[j])})
    return before


def unordered(accesses: list[Access], found: list[tuple[int, ...]]) -> list[tuple[int, int]]:
    before = reachable(found)
    return [
        (j, i)
        for i in range(len(accesses))
        for j in range(i)
        if accesses[i].conflicts(accesses[j]) and j not in before[i]
    ]


@given(ACCESSES)
def test_every_conflict_is_ordered_and_every_edge_is_needed(accesses: list[Access]) -> None:
    found = edges(accesses)
    assert not unordered(accesses, found)
    for i, after in enumerate(found):
        for j in after:
            without = list(found)
            without[i] = tuple(k for k in after if k != j)
            assert (j, i) in unordered(accesses, without)


def test_reads_do_not_wait_for_reads() -> None:
    x, y, z = Span("T", 0, 4), Span("T", 4, 8), Span("T", 8, 12)
    writes_x, x_to_y, x_to_z = Access((), (x,)), Access((x,), (y,)), Access((x,), (z,))
    join = Access((y, z), (x,))
    assert edges([writes_x, x_to_y, x_to_z, join]) == [(), (0,), (0,), (1, 2)]


def test_launches_that_share_out_the_rows_do_not_wait_for_each_other() -> None:
    chunks, singles = Access((), (Span("T", 0, 4, "chunks"),)), Access((), (Span("T", 0, 4, "singles"),))
    reader = Access((Span("T", 0, 4),), ())
    assert edges([chunks, singles, reader]) == [(), (), (0, 1)]


def test_neighbours_do_not_meet() -> None:
    assert edges([Access((), (Span("T", 0, 4),)), Access((Span("T", 4, 8), Span("R", 0, 4)), ())]) == [(), ()]


@given(ACCESSES)
def test_workers_meet_between_any_two_that_conflict_and_not_sooner(accesses: list[Access]) -> None:
    met = meetings(accesses)
    last = 0
    for i, access in enumerate(accesses):
        assert met[i] == any(access.conflicts(other) for other in accesses[last:i])
        last = i if met[i] else last
