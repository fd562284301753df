"""The arena: no two living buffers share bytes, and each region is as large as its last byte."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmc.codegen.memory import LINE, Life, RowKind, place_buffers, round_line

lives = st.lists(
    st.tuples(st.sampled_from(RowKind), st.integers(1, 5000), st.integers(0, 20), st.integers(0, 6)), max_size=30
).map(
    lambda items: [Life(f"b{i}", rows, size, first, first + span) for i, (rows, size, first, span) in enumerate(items)]
)


@given(lives)
def test_living_buffers_do_not_overlap(lives: list[Life]) -> None:
    plan = place_buffers(lives)
    assert set(plan.placements) == {b.name for b in lives}
    placed = list(plan.placements.values())
    for p in placed:
        assert p.offset % LINE == 0 and p.offset >= 0
    for i, a in enumerate(placed):
        for b in placed[:i]:
            together = a.life.first <= b.life.last and b.life.first <= a.life.last
            # a run-time size multiplies offsets: bytes per row must be apart as intervals
            apart = a.offset + a.life.row_bytes <= b.offset or b.offset + b.life.row_bytes <= a.offset
            assert apart or not together or a.life.rows is not b.life.rows


@given(lives)
def test_regions_end_where_their_last_buffer_does(lives: list[Life]) -> None:
    plan = place_buffers(lives)
    for kind, size in ((RowKind.TOKEN, plan.per_token), (RowKind.SAMPLED, plan.per_row)):
        ends = [p.offset + round_line(p.life.row_bytes) for p in plan.placements.values() if p.life.rows is kind]
        assert size == max(ends, default=0)


@given(lives, st.randoms())
def test_the_plan_does_not_depend_on_the_order_it_is_told(lives: list[Life], random: object) -> None:
    shuffled = list(lives)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert place_buffers(shuffled) == place_buffers(lives)


def test_buffers_of_other_times_share() -> None:
    plan = place_buffers([Life("a", RowKind.TOKEN, 100, 0, 1), Life("b", RowKind.TOKEN, 80, 2, 3)])
    assert plan.per_token == 128 and plan.placements["b"].offset == 0


def test_a_buffer_lives_through_the_launch_that_reads_it_last() -> None:
    plan = place_buffers([Life("a", RowKind.TOKEN, 64, 0, 1), Life("b", RowKind.TOKEN, 64, 1, 2)])
    assert plan.per_token == 128
