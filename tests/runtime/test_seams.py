"""Each seam of docs/runtime.md with a toy user: what it takes is there, although nothing uses it yet."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from llmc.runtime import Engine, SamplingParams
from llmc.runtime.artifact.kv_layout import KvGroup, KvLayout
from llmc.runtime.cpu.device import CpuDevice
from llmc.runtime.device.protocol import Device, DeviceMemory
from llmc.runtime.kv.blocks import BlockCopy, BlockManager, BlockTable
from llmc.runtime.kv.pool_sizes import retentions, size_pools
from llmc.runtime.kv.prefix import PrefixChain
from llmc.runtime.loop.batch import Batch, Chunk
from llmc.runtime.loop.layout import lay_out
from llmc.runtime.loop.request import Request, TokenHistory
from llmc.runtime.step.arrays import StepBuffers, StepLimits
from llmc.runtime.step.row_sampling import RowSampling
from tests.runtime import reference_oracle as oracle
from tests.runtime.engine_folders import IM_END

PARAMS = SamplingParams(temperature=1.2, seed=5, max_tokens=12, ignore_eos=True, repetition_penalty=1.3)


def prompts(count: int, longest: int) -> list[list[int]]:
    rng = random.Random(count)
    return [[rng.randrange(oracle.NUM_VALID) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def answers(given: Sequence[Sequence[int]], params: SamplingParams = PARAMS) -> list[list[int]]:
    assert params.seed is not None
    return [oracle.generate(prompt, params, params.seed, eos=(IM_END,), max_len=256)[0] for prompt in given]


def test_several_rows_of_a_sequence_in_one_step(engine: Engine) -> None:
    """Speculation: a draft of three tokens is checked in one step, which chooses after each of them and before."""
    (prompt,), seed = prompts(1, 20), 5
    chosen = answers([prompt])[0]
    tokens = [*prompt, *chosen[:2], 7]  # two that will be chosen, and one that will not
    table = engine.core.blocks.allocate(len(tokens))
    assert table is not None
    engine.core.blocks.take(table, len(tokens))
    request = Request(0, TokenHistory(tokens), len(prompt), RowSampling(PARAMS, seed, len(prompt), ()))
    step, chunk = StepBuffers(engine.device.limits), Chunk(request, table, 0, len(tokens), samples=4)
    batch = Batch((chunk,))
    assert lay_out(batch, step) == [chunk] * 4 and not batch.decode_only
    engine.device.prefill(step)
    engine.core.blocks.free(table)
    behind = oracle.choose(oracle.logits(tokens), tokens, len(prompt), PARAMS, seed)  # what nobody will ask for
    assert step.out_tokens[:4].tolist() == [*chosen[:3], behind] and chosen[2] != 7


INPUTS = ("token_ids", "positions", "seq_starts", "block_tables", "rows", "sampling")


class Ranks:
    """Devices that run every step together, of the same arrays; the last one's outputs count."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = devices
        self.limits = devices[0].limits
        self.swap_space = None
        self.num_blocks = tuple(min(counts) for counts in zip(*(d.num_blocks for d in devices), strict=True))

    @property
    def memory(self) -> DeviceMemory:
        each = [vars(device.memory) for device in self.devices]
        return DeviceMemory(**{name: sum(one[name] for one in each) for name in each[0]})

    def prefill(self, step: StepBuffers) -> None:
        given = [getattr(step, name).tobytes() for name in INPUTS]
        for device in self.devices:
            device.prefill(step)
            assert [getattr(step, name).tobytes() for name in INPUTS] == given

    def decode(self, step: StepBuffers) -> None:
        for device in self.devices:
            device.decode(step)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        for device in self.devices:
            device.copy_blocks(copies)

    def close(self) -> None:
        for device in self.devices:
            device.close()


def test_ranks_behind_one_device(engine: Engine) -> None:
    """The loop knows one device, a device one set of arrays, which it does not change but for the outputs."""
    given, limits = prompts(4, 60), engine.device.limits
    blocks = [(20,), (30,)]  # the smaller pool counts: requests are preempted, on all ranks alike
    ranks = Ranks([CpuDevice(engine.artifact, limits, count, 1) for count in blocks])
    together = Engine(engine.artifact, ranks, limits.max_seqs, engine.tokenizer)
    completions = together.generate(given, PARAMS)
    ranks.close()
    assert [list(completion.token_ids) for completion in completions] == answers(given)
    assert sum(completion.num_preemptions for completion in completions) > 0


BLOCK = 4
HYBRID = KvLayout(BLOCK, (KvGroup(None, 64, 16, ()), KvGroup(2, 4096, 0, ())))  # KV, and a state of 4 KiB


class Hybrid:
    """A model with a cache of its tokens and a recurrent state: block i of the second group holds the state after the
    last of its positions that was computed, and so, once the next block is written, the snapshot at its end."""

    def __init__(self, num_blocks: Sequence[int]) -> None:
        self.tokens = np.full((num_blocks[0], BLOCK), -1)
        self.states = [0] * num_blocks[1]

    def run(self, table: BlockTable, start: int, ids: Sequence[int]) -> int:
        kept, states = table.block_ids(0), table.block_ids(1)
        state = self.states[states[(start - 1) // BLOCK]] if start else oracle.SALT
        for position, token in enumerate(ids, start):
            self.tokens[kept[position // BLOCK], position % BLOCK] = token
            state = oracle.mix(state ^ token)
            self.states[states[position // BLOCK]] = state
        return state

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            if copy.group:
                self.states[copy.target] = self.states[copy.source]
            else:
                self.tokens[copy.target] = self.tokens[copy.source]


def test_a_recurrent_state_and_its_snapshots() -> None:
    """The prefix cache over both groups: a sequence goes on from any snapshot, at a block's end or at an answer's."""
    limits = StepLimits(max_tokens=10, max_seqs=4, max_rows=4, max_seq_len=64, block_tokens=BLOCK, kv_groups=2)
    num_blocks = size_pools(HYBRID, limits, 10**6)
    assert num_blocks is not None and num_blocks[1] <= limits.max_seqs * (limits.max_tokens // BLOCK + 2)
    manager = BlockManager(retentions(HYBRID, limits.max_tokens), (60, 30))
    model, rng, hits = Hybrid((60, 30)), random.Random(4), list[int]()
    ids = list[int]()
    for _ in range(200):
        ids = [*ids[: rng.choice([0, len(ids)])], *(rng.randrange(2) for _ in range(rng.randint(1, 12)))][:40]
        table = manager.allocate(len(ids), PrefixChain(TokenHistory(ids), b"root"))
        assert table is not None
        model.copy(manager.take_copies())
        start = table.num_computed
        hits += [start] if start else []
        ends = sorted({len(ids), *(rng.randrange(start, len(ids)) for _ in range(3))} - {start})
        ends = sorted({*ends, *range(start + limits.max_tokens, len(ids), limits.max_tokens)})
        for begin, end in pairwise([start, *ends]):
            manager.take(table, end)
            state = model.run(table, begin, ids[begin:end])
            manager.computed(table, end)
            manager.check_integrity()
        assert state == Hybrid((10, 10)).run(*_alone(ids))
        manager.free(table)
    assert len(hits) > 50 and any(start % BLOCK for start in hits) and manager.counters.evictions > 50
    assert manager.num_free == 90


def _alone(ids: Sequence[int]) -> tuple[BlockTable, int, Sequence[int]]:
    manager = BlockManager(retentions(HYBRID, len(ids)), (10, 10))
    table = manager.allocate(len(ids))
    assert table is not None
    manager.take(table, len(ids))
    return table, 0, ids
