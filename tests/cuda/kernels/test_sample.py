"""Sampling on CUDA against the CPU's kernel: the same tokens, ids and log-probabilities, bit for bit.

The CPU's kernel has a reference of its own in float64 (tests/kernels/test_sample.py).
"""

from __future__ import annotations

import numpy as np
import pytest

from llmc.codegen.cuda.sample.params import SampleParams
from llmc.emulator.session import Schedule
from llmc.runtime.artifact.manifest import MAX_LOGPROBS
from tests.cuda.harness import Lab
from tests.cuda.kernels import sample_rows
from tests.cuda.kernels.cpu_sample import cpu_sample
from tests.cuda.kernels.sample_runner import cuda_sample, differences


@pytest.fixture
def fast(lab: Lab) -> Lab:
    """Unchecked twins, on all cores, in the forward schedule; test_numerics runs the checked ones in three."""
    from llmc.emulator.session import Mode

    other = Lab(checked=False, emulator=lab.emulator)
    other.emulator.set_checked(False)
    other.emulator.set_schedule(Schedule(Mode.FORWARD))
    return other


@pytest.mark.parametrize(
    ("valid", "vocab", "threads", "listed", "count"),
    [
        (7, 7, 32, 32, 945),
        (97, 100, 64, 64, 945),
        (1000, 1001, 128, 128, 630),
        (1000, 1001, 64, 1024, 630),
        (32000, 32000, 512, 4096, 35),
        (128256, 128256, 512, 4096, 9),
        (262144, 262144, 512, 4096, 2),
    ],
)
def test_equals_the_cpu_bit_for_bit(fast: Lab, valid: int, vocab: int, threads: int, listed: int, count: int) -> None:
    """Every combination of logits, filters and edits; lists that overflow and lists that do not."""
    logits, chosen = sample_rows.rows(np.random.default_rng(valid), count, valid, vocab)
    sampling = [c.record for c in chosen]
    got = cuda_sample(fast, SampleParams(valid, vocab, threads, listed), logits, sampling)
    assert not differences(got, cpu_sample(logits, sampling, valid))


def test_edges_draw_the_tokens_at_their_bounds() -> None:
    logits, chosen = sample_rows.edges()
    assert tuple(cpu_sample(logits, [c.record for c in chosen], sample_rows.EDGE_IDS).tokens) == sample_rows.EDGE_TOKENS


def test_a_row_does_not_depend_on_its_company(fast: Lab) -> None:
    p = SampleParams(1000, 1000, 64, 64)
    logits, chosen = sample_rows.rows(np.random.default_rng(1), 40, p.valid, p.vocab)
    sampling = [c.record for c in chosen]
    together = cuda_sample(fast, p, logits, sampling)
    for i in range(0, 40, 3):
        alone = cuda_sample(fast, p, logits[i : i + 1], sampling[i : i + 1])
        assert alone.tokens[0] == together.tokens[i]
        assert np.array_equal(alone.logprob[0], together.logprob[i], equal_nan=True)


def test_threads_and_the_list_do_not_matter(fast: Lab) -> None:
    logits, chosen = sample_rows.rows(np.random.default_rng(2), 21, 1000, 1000)
    sampling = [c.record for c in chosen]
    first = cuda_sample(fast, SampleParams(1000, 1000, 32, 32), logits, sampling)
    for threads, listed in ((64, 1024), (512, 512)):
        assert not differences(cuda_sample(fast, SampleParams(1000, 1000, threads, listed), logits, sampling), first)


def test_distribution(fast: Lab) -> None:
    """Chi-squared over 4,000 draws at p = 0.001, of the eleven tokens that top_k leaves."""
    logits = np.repeat(np.random.default_rng(3).standard_normal((1, 16)).astype(np.float32), 4000, axis=0)
    asks = [
        sample_rows.record(top_k=11, temperature=0.8, seed=5, position=i % 500, sample_index=i // 500)
        for i in range(4000)
    ]
    tokens = cuda_sample(fast, SampleParams(16, 16, 32, 32), logits, asks).tokens
    weights = np.exp(logits[0].astype(np.float64) / np.float32(0.8))
    weights[np.argsort(-weights)[11:]] = 0
    expected = weights / weights.sum() * len(logits)
    counts = np.bincount(tokens, minlength=16)
    assert counts[weights == 0].sum() == 0
    left = weights > 0
    assert np.sum((counts[left] - expected[left]) ** 2 / expected[left]) < 29.6  # 10 degrees of freedom


def test_rows_that_want_no_token_get_none(fast: Lab) -> None:
    """A step that asks for raw logits alone, and rows of a bucket behind the step's."""
    p = SampleParams(97, 97, 64, 64)
    logits, chosen = sample_rows.rows(np.random.default_rng(4), 4, p.valid, p.vocab)
    sampling = [c.record for c in chosen]
    for s in sampling:
        s.num_logprobs = MAX_LOGPROBS
    for got in (
        cuda_sample(fast, p, logits, sampling, wanted=False),
        cuda_sample(fast, p, logits, sampling, live=0),
    ):
        for values in vars(got).values():
            assert (values == -7).all()


def test_illegal_parameters_are_refused() -> None:
    for fields, what in (
        ((0, 4), "valid 0"),
        ((5, 4), "valid 5 of vocab 4"),
        ((2**18 + 1, 2**18 + 1), "262144"),
        ((97, 97, 100), "threads 100"),
        ((97, 97, 64, 32), "listed 32"),
    ):
        with pytest.raises(ValueError, match=what):
            SampleParams(*fields)
