"""The prefix cache: what is found, what is kept, and that a warm engine answers as a cold one, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from llmc.runtime import Engine, FinishReason, SamplingParams
from llmc.runtime.errors import InvalidParameter, StepFailed
from llmc.runtime.kv.blocks import BlockManager, BlockTable
from llmc.runtime.kv.counters import BlockUse
from llmc.runtime.kv.prefix import PrefixChain, root_of
from llmc.runtime.kv.retention import Retention
from llmc.runtime.kv.swap import CopyKind, SwapSpace
from llmc.runtime.loop.request import TokenHistory
from llmc.runtime.loop.results import Completion
from tests.runtime import reference_oracle as oracle
from tests.runtime.engine_folders import Windows, fill_engine, kv_layout, target

BLOCK = oracle.BLOCK_TOKENS
ROOT = root_of(b"engine", "", "")
PARAMS = SamplingParams(temperature=1, seed=3, ignore_eos=True, logprobs=2, max_tokens=6)


def pool(num_blocks: int, window: int | None = None) -> BlockManager:
    return BlockManager([Retention(window, BLOCK, 64)], [num_blocks])


def allocate(manager: BlockManager, ids: Sequence[int], root: bytes = ROOT) -> BlockTable:
    table = manager.allocate(len(ids), PrefixChain(TokenHistory(ids), root))
    assert table is not None
    manager.check_integrity()
    return table


def compute(manager: BlockManager, table: BlockTable, end: int) -> None:
    manager.take_copies()
    manager.take(table, end)
    manager.computed(table, end)
    manager.check_integrity()


def run(manager: BlockManager, ids: Sequence[int], root: bytes = ROOT) -> int:
    """Positions that were found."""
    table = allocate(manager, ids, root)
    compute(manager, table, len(ids))
    manager.free(table)
    manager.check_integrity()
    return table.num_computed


def test_as_many_ids_are_found_as_agree_but_the_last() -> None:
    manager, ids = pool(50), list(range(100, 120))
    assert run(manager, ids) == 0
    for length in range(1, 21):
        assert run(manager, ids[:length]) == length - 1
        assert run(manager, [*ids[:length], 7, 7]) in (length, length + 1)  # a 7 is there from the second length on
    assert run(manager, [7, *ids]) == 0
    assert manager.num_free == 50


def test_another_salt_finds_nothing() -> None:
    manager, ids = pool(50), list(range(100, 120))
    roots = [root_of(b"engine", "", ""), root_of(b"engine", "", "a"), root_of(b"engine", "a", "")]
    roots += [root_of(b"enginea", "", ""), root_of(b"engine", "\ud800", "")]
    assert len(set(roots)) == len(roots)
    assert [run(manager, ids, root) for root in roots] == [0] * 5
    assert [run(manager, ids, root) for root in roots] == [19] * 5


def test_leaves_that_nobody_used_for_longest_are_evicted_first() -> None:
    manager = pool(6)
    first, second = [1] * 12, [2] * 12
    run(manager, first)
    run(manager, second)
    assert run(manager, [*first[:8], 3]) == 8  # its first two blocks are used, its third is the oldest leaf: evicted
    assert manager.counters.evictions == 1
    use = manager.occupancy()[0]
    assert (use.count(BlockUse.FREE), use.count(BlockUse.CACHED)) == (0, 6)
    assert run(manager, second) == 11 and run(manager, first) == 8
    # a table that needs everything leaves nothing
    table = allocate(manager, [9] * 24)
    compute(manager, table, 24)
    assert manager.occupancy()[0].count(BlockUse.HELD) == 6 and manager.num_free == 0
    manager.free(table)
    assert run(manager, first) == 0


def test_what_two_compute_at_once_is_kept_once() -> None:
    manager, ids = pool(10), [5, 6, 7, 8, 9]
    one, two = allocate(manager, ids), allocate(manager, ids)
    assert one.num_computed == two.num_computed == 0 and manager.num_free == 6
    for table in (one, two):
        manager.take(table, 5)
    assert one.block_ids(0)[0] != two.block_ids(0)[0]
    for table in (one, two):
        manager.computed(table, 5)
        manager.check_integrity()
    assert one.block_ids(0)[0] == two.block_ids(0)[0] and one.block_ids(0)[1] != two.block_ids(0)[1]
    assert manager.num_free == 7 and manager.occupancy()[0].count(BlockUse.SHARED) == 1
    manager.free(one)
    manager.free(two)
    assert manager.num_free == 10 and manager.occupancy()[0].count(BlockUse.CACHED) == 2


@pytest.mark.parametrize("length", [3, 4, 5, 11, 12, 13])
def test_a_sibling_waits_and_copies_the_last_block(length: int) -> None:
    manager, ids = pool(20), list(range(length))
    prefix = PrefixChain(TokenHistory(ids), ROOT)
    assert not manager.awaits(prefix)
    one = allocate(manager, ids)
    assert manager.awaits(prefix) and not manager.awaits(PrefixChain(TokenHistory([7, *ids]), ROOT))
    assert not manager.awaits(PrefixChain(TokenHistory(ids), root_of(b"engine", "", "other")))
    compute(manager, one, length)
    assert not manager.awaits(prefix)
    two = allocate(manager, ids)
    assert two.num_computed == length - 1
    copies = manager.take_copies()
    whole = (length - 1) // BLOCK
    if (length - 1) % BLOCK:
        assert [(c.source, c.target) for c in copies] == [(one.block_ids(0)[whole], two.block_ids(0)[whole])]
        assert copies[0].source != copies[0].target
    else:
        assert not copies
    assert two.block_ids(0)[:whole] == one.block_ids(0)[:whole]
    manager.free(one)
    assert not manager.awaits(prefix)
    manager.free(two)
    assert manager.num_free == 20


def test_a_cancelled_table_is_no_longer_awaited_and_leaves_what_it_computed() -> None:
    manager, ids = pool(20), list(range(18))
    table = allocate(manager, ids)
    compute(manager, table, 7)
    manager.free(table)
    assert not manager.awaits(PrefixChain(TokenHistory(ids), ROOT))
    assert allocate(manager, ids).num_computed == 7


def test_a_state_that_a_step_is_changing_is_not_found() -> None:
    """Who is cancelled while a step runs for it leaves keys and values, but no state of before that step."""
    for state, found in ((False, 6), (True, 4)):
        manager = BlockManager([Retention(None, BLOCK, 64), Retention(2, BLOCK, 64, state=state)], [20, 20])
        table = allocate(manager, list(range(8)))
        compute(manager, table, 6)
        manager.take(table, 7)
        manager.free(table)
        assert allocate(manager, list(range(8))).num_computed == found


@pytest.mark.parametrize(("agree", "found"), [(40, 40), (33, 33), (26, 26), (24, 24), (21, 21), (20, 0), (3, 0)])
def test_a_window_finds_the_longest_length_whose_last_blocks_are_there(agree: int, found: int) -> None:
    """Of the group with a window of 6 the last six of ten blocks are there, positions 16 and up; a token at 21 reads
    from 16 on, one at 20 from 15."""
    manager = BlockManager([Retention(None, BLOCK, 8), Retention(6, BLOCK, 8)], [50, 6])
    ids = list(range(100, 140))
    table = allocate(manager, ids)
    for end in range(8, 41, 8):
        compute(manager, table, end)
    manager.free(table)
    assert manager.occupancy()[1].count(BlockUse.CACHED) == 6
    assert allocate(manager, [*ids[:agree], 7, 7]).num_computed == found


def test_blocks_are_kept_in_host_memory_where_that_is_cheaper_and_there_is_room() -> None:
    """A block takes 0.1 s each way; there are three slots."""
    space = SwapSpace((3,), (100,), 1e-3)
    manager = BlockManager([Retention(None, BLOCK, 64)], [4], swap=space)
    prefix = prefix_of(list(range(8)))
    table = manager.allocate(8, prefix)
    assert table is not None
    compute(manager, table, 7)
    assert not manager.keep(table, 0.4) and manager.keep(table, 0.41)
    out = manager.take_copies()
    assert [(copy.source, copy.kind) for copy in out] == [(block, CopyKind.OUT) for block in table.block_ids(0)]
    manager.free(table)
    manager.check_integrity()
    large = allocate(manager, [7] * 16)  # needs every block: nothing of it is cached any more
    compute(manager, large, 16)
    assert not manager.keep(large, 1e9)  # four blocks, one slot
    manager.free(large)
    back = manager.allocate(8, prefix)
    assert back is not None and back.num_computed == 7
    brought = [(copy.source, copy.target, copy.kind) for copy in manager.take_copies()]
    assert brought == [(o.target, block, CopyKind.IN) for o, block in zip(out, back.block_ids(0), strict=True)]
    manager.check_integrity()
    assert (manager.counters.swapped_out, manager.counters.swapped_in) == (2, 2)
    manager.free(back)
    assert manager.num_free == 4 and not manager._swap.kept


def test_without_the_cache_nothing_is_found() -> None:
    manager = BlockManager([Retention(None, BLOCK, 64)], [10], prefix_cache=False)
    assert [run(manager, [1] * 9) for _ in range(3)] == [0, 0, 0]
    assert manager.counters.hits == manager.counters.misses == 0 and not manager.awaits(prefix_of([1] * 9))


def prefix_of(ids: Sequence[int]) -> PrefixChain:
    return PrefixChain(TokenHistory(ids), ROOT)


@pytest.fixture(scope="module")
def folder_of(
    build_reference: Callable[[Windows], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Windows], Path]:
    made: dict[Windows, Path] = {}

    def make(windows: Windows) -> Path:
        if windows not in made:
            made[windows] = tmp_path_factory.mktemp("cached")
            fill_engine(made[windows], build_reference(windows), targets=(target(kv=kv_layout(windows)),))
        return made[windows]

    return make


def bits(completion: Completion) -> tuple[object, ...]:
    assert completion.error is None
    return completion.token_ids, completion.logprobs, completion.text


GROUPS: list[Windows] = [(None,), (None, 6), (None, 13, 6, 1), (6,), (24, 7)]


@pytest.mark.parametrize("windows", GROUPS, ids=str)
def test_warm_is_cold_at_every_length_around_a_blocks_end(
    folder_of: Callable[[Windows], Path], windows: Windows
) -> None:
    """vllm#17999: prompts that are cached whole, three times, and what goes on from them."""
    rng = random.Random(1)
    ids = [rng.randrange(oracle.NUM_VALID) for _ in range(60)]
    lengths = [k * BLOCK + d for k in (1, 2, 5, 10) for d in (-1, 0, 1)]
    with Engine.load(folder_of(windows), prefix_cache=False) as engine:
        cold = {n: bits(engine.generate([ids[:n]], PARAMS)[0]) for n in lengths}
        on = {n: bits(engine.generate([[*ids[:n], 5]], PARAMS)[0]) for n in lengths}
        assert engine.generate([ids], PARAMS)[0].num_cached == 0
    with Engine.load(folder_of(windows)) as engine:
        for length in lengths:
            for turn in range(3):
                found = engine.generate([ids[:length]], PARAMS)[0]
                assert bits(found) == cold[length] and (found.num_cached == length - 1 or not turn)
            assert bits(engine.generate([ids[:length]], PARAMS, salt="mine")[0]) == cold[length]
            assert bits(engine.generate([[*ids[:length], 5]], PARAMS)[0]) == on[length]
            engine.check_integrity()
        assert engine.num_free_blocks == sum(engine.device.num_blocks)


def test_an_answer_is_found_by_the_next_turn(engine: Engine) -> None:
    first = engine.generate([[1, 2, 3, 4, 5]], PARAMS)[0]
    turn = [1, 2, 3, 4, 5, *first.token_ids, 9]
    second = engine.generate([turn], PARAMS)[0]
    assert second.num_cached == 5 + 6 - 1  # the last token's keys and values were never computed
    tokens, _ = oracle.generate(turn, PARAMS, 3, eos=(), max_len=256)
    assert list(second.token_ids) == tokens


def test_another_salt_never_finds_and_is_no_text_of_any_length(engine: Engine) -> None:
    prompt = list(range(40))
    assert [engine.generate([prompt], PARAMS, salt=salt)[0].num_cached for salt in ("a", "b", "", "a")] == [0, 0, 0, 39]
    for salt in ("x" * 1025, 7, None):
        with pytest.raises(InvalidParameter, match="salt must be a string of at most 1024 characters"):
            engine.submit(prompt, PARAMS, salt=salt)  # type: ignore[arg-type]


def test_equal_prompts_together_compute_once(engine: Engine) -> None:
    prompt = list(range(30))
    completions = engine.generate([prompt] * 8, PARAMS)
    assert [completion.num_cached for completion in completions] == [0, *[29] * 7]
    assert len({completion.token_ids for completion in completions}) == 1


def test_cancelled_at_every_chunk_leaves_all_blocks_free_and_a_prefix(folder_of: Callable[[Windows], Path]) -> None:
    """sglang#1858, and what was computed until then is found."""
    prompt = [7 * i % 250 for i in range(50)]
    for windows in GROUPS:
        with Engine.load(folder_of(windows), max_tokens=8) as engine:
            free = engine.num_free_blocks
            expected = oracle.generate(prompt, PARAMS, 3, eos=(), max_len=256, window=windows[0])[0]
            for steps in range(12):
                handle = engine.submit(prompt, PARAMS, salt=str(steps))
                for _ in range(steps):
                    engine.step()
                handle.cancel()
                assert engine.num_free_blocks == free
                engine.check_integrity()
                found = engine.generate([prompt], PARAMS, salt=str(steps))[0]
                assert list(found.token_ids) == expected and found.num_cached == min(49, 8 * steps)


def test_preempted_often_with_seed_and_penalty(folder_of: Callable[[Windows], Path]) -> None:
    """vllm#16832: preemptions change nothing, though what was computed before may be found again or not."""
    params = SamplingParams(temperature=1, seed=5, ignore_eos=True, repetition_penalty=1.3, max_tokens=40, logprobs=1)
    prompts = [[1, 2, 3, *(i * 11 + j for j in range(9))] for i in range(6)]
    preemptions = 0
    for windows in GROUPS[:3]:
        with Engine.load(folder_of(windows), prefix_cache=False) as engine:
            expected = [bits(one) for one in engine.generate(prompts, params)]
        memory = 14 * sum(group.block_bytes for group in kv_layout(windows).groups)
        with Engine.load(folder_of(windows), kv_memory=memory, max_tokens=16) as engine:
            found = engine.generate(prompts, params)
            assert [bits(one) for one in found] == expected
            preemptions += sum(one.num_preemptions for one in found)
            assert engine.core.blocks.counters.evictions > 0
            engine.check_integrity()
    assert preemptions >= 3


def test_after_a_torn_step_nothing_is_found(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = list(range(30))
    engine.generate([prompt], PARAMS)
    handle = engine.submit(prompt, PARAMS)
    with monkeypatch.context() as patch:
        patch.setattr(type(engine.device), "_run", lambda *_: (_ for _ in ()).throw(StepFailed("device fault")))
        with pytest.raises(StepFailed):
            engine.step()
    assert handle.completion is not None and handle.completion.finish_reason is FinishReason.ERROR
    assert engine.generate([prompt], PARAMS)[0].num_cached == 0
