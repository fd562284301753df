"""Which slots share a pool, where they lie in its blocks, and what readers of a shared slot make it keep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmc.codegen.cpu.kv import kv_arguments, slot_bytes
from llmc.codegen.kv_groups import BLOCK_TOKENS, LINE, CacheSlot, cache_slots, group_slots, reach
from llmc.ir.ops.attention import Mask
from llmc.ir.parser import parse
from llmc.ir.types import DType

slots = st.builds(
    CacheSlot,
    st.just("layer"),
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([DType.F32, DType.BF16]),
    st.sampled_from([None, 5, 8, 4096]),
)


@given(st.lists(slots, max_size=9))
def test_slots_of_a_window_lie_side_by_side(given: list[CacheSlot]) -> None:
    found = group_slots(tuple(given), slot_bytes)
    assert [place.slot for place in found.places] == given
    windows = [group.window for group in found.groups]
    assert len(set(windows)) == len(windows) and set(windows) == {slot.window for slot in given}
    assert windows == sorted(windows, key=lambda w: float("inf") if w is None else w, reverse=True)
    for number, group in enumerate(found.groups):
        places = [place for place in found.places if place.group == number]
        assert [place.slot for place in places] == list(group.slots)
        end = 0
        for place in places:
            assert place.slot.window == group.window and place.offset == end and end % LINE == 0
            end = place.offset + -(-slot_bytes(place.slot) // LINE) * LINE
        assert end == group.block_bytes
    layout = found.layout
    assert [group.block_bytes for group in layout.groups] == [group.block_bytes for group in found.groups]
    assert layout.bytes_per_token == sum(group.block_bytes // BLOCK_TOKENS for group in found.groups)
    assert len(layout.slots) == len(given)


def test_a_slot_may_bring_scales() -> None:
    """A seam: int8 keys and values, and behind them, in the same block, an f32 scale for each head and position. What
    a slot takes is its own `slot_bytes`; groups, pools and block tables know no more of it."""

    def with_scales(slot: CacheSlot) -> int:
        return slot.kv_heads * BLOCK_TOKENS * (slot.head_dim + slot.value_dim + 4)

    slots = [CacheSlot(name, 2, 24, 8, DType.I8, window) for name, window in (("a", None), ("b", 7), ("c", None))]
    found = group_slots(tuple(slots), with_scales)
    assert [(place.group, place.offset) for place in found.places] == [(0, 0), (1, 0), (0, 2 * 32 * 36)]
    assert [group.bytes_per_token for group in found.layout.groups] == [2 * 2 * 36, 2 * 36]
    exact = np.random.default_rng(0).standard_normal((2, 2, BLOCK_TOKENS, 32)).astype(np.float32)
    pool = np.zeros((3, found.groups[0].block_bytes), np.uint8)
    parts = []
    for place, values in zip((found.places[0], found.places[2]), exact, strict=True):
        part = pool[1, place.offset : place.offset + with_scales(place.slot)]
        data, scales = part[: values.size].view(np.int8), part[values.size :].view(np.float32)
        parts.append((data.reshape(values.shape), scales.reshape(2, BLOCK_TOKENS, 1)))
        parts[-1][1][:] = np.abs(values).max(-1, keepdims=True) / 127
        parts[-1][0][:] = np.round(values / parts[-1][1])
    for (data, scales), values in zip(parts, exact, strict=True):  # neither slot has written over the other
        assert (np.abs(data * scales - values) <= scales * 0.51).all()


def test_the_kernels_are_told_the_group() -> None:
    wide, narrow = CacheSlot("a", 1, 4, 16, DType.F32, None), CacheSlot("b", 2, 4, 16, DType.BF16, 8)
    found = group_slots((narrow, wide, narrow), slot_bytes)
    assert [kv_arguments(place) for place in found.places] == [
        ("s.kv[1]", "KvSlot<KvBf16>{0, 2, 4, 16}"),
        ("s.kv[0]", "KvSlot<KvF32>{0, 1, 4, 16}"),
        ("s.kv[1]", f"KvSlot<KvBf16>{{{2 * 32 * (4 + 16) * 2}, 2, 4, 16}}"),
    ]


@pytest.mark.parametrize(
    ("mask", "kept"),
    [(Mask(), None), (Mask(window=7), 7), (Mask(chunk=9), 9), (Mask(window=7, chunk=9), 7), (Mask(9, 7), 7)],
)
def test_reach(mask: Mask, kept: int | None) -> None:
    assert reach(mask) == kept


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("Mask{window=5}", "Mask{window=9}", 9),
        ("Mask{window=9}", "Mask{window=5}", 9),
        ("Mask{}", "Mask{window=5}", None),
        ("Mask{window=5}", "Mask{}", None),
        ("Mask{window=5}", "Mask{chunk=16}", 16),
        ("Mask{window=5}", "Mask{window=5}", 5),
    ],
)
def test_a_shared_slot_keeps_what_its_widest_reader_needs(first: str, second: str, kept: int | None) -> None:
    read = "paged_attention{slot=0, scale=1.0, num_kv_heads=2, value_dim=8, mask=%s}(%%c, %%q, %%p, %%n) : f32[T, 4, 8]"
    graph = parse(
        f"""graph decode {{
  dims T in [1, 8]
  inputs %q: f32[T, 4, 6], %k: f32[T, 2, 6], %v: f32[T, 2, 8], %p: i32[T], %n: i32[T], %kv: kv
  %c = rows{{body=graph body {{
    inputs %kv: kv, %k: f32[T, 2, 6], %v: f32[T, 2, 8], %p: i32[T], %n: i32[T]
    %w = kv_write{{slot=0}}(%kv, %k, %v, %p, %n) : kv
    outputs %w
  }}}}(%kv, %k, %v, %p, %n) : kv
  %a = {read % first} @ "one"
  %b = {read % second} @ "two"
  outputs %a, %b, %c
}}
"""
    )
    assert cache_slots(graph) == (CacheSlot("one", 2, 6, 8, DType.F32, kept),)
