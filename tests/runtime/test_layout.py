"""Arrays that are kept from step to step hold what arrays that are filled anew hold."""

from __future__ import annotations

import random

import numpy as np
import pytest

from llmc.runtime.kv.blocks import BlockTable
from llmc.runtime.loop.batch import Batch
from llmc.runtime.loop.layout import lay_out
from llmc.runtime.loop.request import Request
from llmc.runtime.step.arrays import StepBuffers, StepLimits
from llmc.runtime.step.params import SamplingParams
from llmc.runtime.step.row_sampling import RowSampling
from tests.runtime.scheduling_traces import Arrival, Run, Trace, random_trace


class LaidOut(Run):
    """A run whose steps are laid out in two sets of arrays in turn, as a loop that runs ahead does."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        groups, length = len(self.windows), self.scheduler.max_seq_len
        tokens, seqs = trace.max_tokens, trace.max_batch
        self.limits = StepLimits(tokens, seqs, seqs, length, trace.block_tokens, groups)
        self.kept = [StepBuffers(self.limits) for _ in range(2)]

    def arrive(self, arrival: Arrival) -> None:
        super().arrive(arrival)
        newest = next(reversed(self.requests), None)
        if newest is not None:
            newest.sampling = self.sampling(newest)

    def sampling(self, one: Request) -> RowSampling:
        params = SamplingParams(seed=one.arrival, min_tokens=3 * (one.arrival % 3), logit_bias={1: 1.0})
        return RowSampling(params, one.arrival, one.prompt_len, (5, 6))

    def look(self, batch: Batch) -> None:
        step, fresh = self.kept[0], StepBuffers(self.limits)
        self.kept.reverse()
        if self.rng.random() < 0.1:  # somebody else has used the arrays for what is no step of requests
            step.begin(samples=False)
            for chunk in batch.chunks[:1]:
                step.add_sequence(np.array([7], np.int32), 0, chunk.blocks)
        assert lay_out(batch, step) == lay_out(batch, fresh)
        assert (step.num_tokens, step.num_seqs, step.num_rows) == (fresh.num_tokens, fresh.num_seqs, fresh.num_rows)
        tokens, seqs, rows = fresh.num_tokens, fresh.num_seqs, fresh.num_rows
        assert tokens == batch.num_tokens and seqs == len(batch.chunks)
        for name, used in (("token_ids", tokens), ("positions", tokens), ("seq_starts", seqs + 1), ("rows", rows)):
            assert getattr(step, name)[:used].tolist() == getattr(fresh, name)[:used].tolist(), name
        assert step.sampling[:rows].tobytes() == fresh.sampling[:rows].tobytes()
        for seq, chunk in enumerate(batch.chunks):
            for group in range(len(self.windows)):
                ids = chunk.blocks.block_ids(group)
                assert step.block_tables[group, seq, : len(ids)].tolist() == list(ids)
            assert fresh.positions[fresh.seq_starts[seq]] == chunk.start


@pytest.mark.parametrize("seed", range(4))
def test_kept_arrays_hold_what_fresh_ones_do(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        LaidOut(random_trace(rng)).check()


def test_a_row_that_was_somebody_else_s_meanwhile_is_written_anew() -> None:
    step = StepBuffers(StepLimits(4, 4, 4, 64, 4, 0))
    mine, other = (RowSampling(SamplingParams(seed=seed), seed, 3, ()) for seed in (1, 2))
    for between in (0, 1):
        step.begin(samples=True)
        if between:
            step.add_row(0)
            step.add_sampled_row(1, other, 0, 3)
            step.begin(samples=True)
        step.set_decoding([7, 8], [3, 4], [BlockTable(0)] * 2, [mine, mine], [0, 0])
        assert step.sampling["seed"][:2].tolist() == [1, 1]
