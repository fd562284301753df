"""Plans of CUDA targets, buckets, and where weights go: what needs no GPU and no driver."""

import random

import pytest

from llmc.runtime.artifact.kv_layout import KvGroup, KvLayout, KvSlot
from llmc.runtime.artifact.plan import Arena, Buffer
from llmc.runtime.artifact.strict_json import parse_json, render_json, to_plain
from llmc.runtime.cuda.buckets import decode_buckets, decode_sizes, prefill_buckets, prefill_sizes, smallest
from llmc.runtime.cuda.driver.gpu import Gpu
from llmc.runtime.cuda.memory.addresses import scratch_bytes
from llmc.runtime.cuda.memory.sizing import Needs, fit_pools, reserve_bytes
from llmc.runtime.cuda.memory.upload import place
from llmc.runtime.cuda.plan import (
    Argument,
    Extent,
    Factor,
    Launch,
    Plan,
    Scratch,
    Sizes,
    Variant,
    read_plan,
)
from llmc.runtime.errors import FileMismatch, ManifestInvalid, NotEnoughMemory
from llmc.runtime.step.arrays import StepLimits

LIMITS = StepLimits(max_tokens=100, max_seqs=40, max_rows=50, max_seq_len=640, block_tokens=32, kv_groups=1)
ROWS = Extent(1, (Factor("R", 1),))


def a_plan():
    logits = Buffer("logits", "f32[R, 8]", "R", 32, 0)
    argument = Argument("buffer", "logits")
    variants = tuple(
        Variant(up_to, "k", (Extent(2), ROWS), 32, 0, (argument,), {"s": Extent(4, (Factor("R", 4),))})
        for up_to in (4, 1 << 30)
    )
    launches = (
        Launch("head", "lm_head", (), (), (), (), "R", variants),
        Launch("sample", "", (), (), (), (0,), "R", variants),
    )
    return Plan("decode", Arena(0, 64), (logits,), (Scratch("s", True),), {"k": "kernels/k.cubin"}, launches, "logits")


def test_plans_round_trip():
    plan = a_plan()
    assert read_plan(render_json(to_plain(plan)), "here") == plan
    assert [plan.launches[0].variant(rows).up_to for rows in (1, 4, 5, 1 << 20)] == [4, 4, 1 << 30, 1 << 30]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.update(format=9), "plan format 9, this llmc reads 1"),
        (lambda p: p.update(logits="b7"), "logits are 'b7', which is no buffer of f32 rows"),
        (
            lambda p: p["launches"][0].update(after=[0]),
            r"launches\[0\] \(head lm_head\): after \[0\], expected earlier",
        ),
        (lambda p: p["launches"][1].update(after=[-1]), r"launches\[1\] .*after \[-1\]"),
        (lambda p: p["launches"][1].update(variants=[]), r"launches\[1\] .*'R' rows in 0 variants"),
        (lambda p: p["kernels"].clear(), "no file for kernel k"),
        (lambda p: p["launches"][0]["variants"][0]["arguments"][0].update(name="x"), "no buffer named 'x'"),
        (
            lambda p: p["launches"][0]["variants"][0]["arguments"][0].update(name=None),
            "of kind buffer has name, got noth",
        ),
        (lambda p: p["launches"][0]["variants"][0]["arguments"][0].update(value=1.0), "has name, got name, value"),
        (lambda p: p["launches"][0]["variants"][0].update(grid=[]), "a grid of 0 dimensions"),
        (lambda p: p["launches"][0]["variants"][0]["grid"][1]["factors"][0].update(symbol="Q"), "symbol is 'Q'"),
        (lambda p: p.update(novelty=1), "novelty: unknown key"),
    ],
)
def test_plans_that_make_no_sense_are_refused(change, message):
    plain = parse_json(render_json(to_plain(a_plan())))
    change(plain)
    with pytest.raises(ManifestInvalid, match=message) as caught:
        read_plan(render_json(plain), "plans/h100/decode.json")
    assert str(caught.value).startswith("plans/h100/decode.json: ") and "\n" not in str(caught.value)


def test_buckets():
    assert decode_buckets(1) == (1,)
    assert decode_buckets(16) == (1, 2, 4, 8, 16)
    assert decode_buckets(40) == (1, 2, 4, 8, 16, 24, 32, 40)
    assert decode_buckets(70) == (1, 2, 4, 8, 16, 24, 32, 48, 64, 70)
    assert prefill_buckets(512) == (16, 32, 64, 128, 256, 512)
    assert prefill_buckets(100) == (16, 32, 64, 100) and prefill_buckets(5) == (5,)
    for count in range(1, 71):
        bucket = smallest(decode_buckets(70), count)
        assert bucket >= count and all(other >= bucket or other < count for other in decode_buckets(70))
    assert decode_sizes(8, LIMITS) == Sizes(8, 8, 8, 640)
    assert prefill_sizes(64, True, LIMITS) == Sizes(64, 50, 40, 640)
    assert prefill_sizes(16, True, LIMITS) == Sizes(16, 16, 16, 640)
    assert prefill_sizes(64, False, LIMITS).rows == 0


def test_scratch_is_that_of_the_largest_variant_of_any_bucket():
    plan = a_plan()
    small = Variant(4, "k", (ROWS,), 32, 0, (), {"s": Extent(1000, (Factor("R", 1),))})
    launch = Launch("odd", "", (), (), (), (1,), "R", (small, plan.launches[0].variants[1]))
    odd = Plan(plan.entry, plan.arena, plan.buffers, plan.scratch, plan.kernels, (*plan.launches, launch), plan.logits)
    buckets = [decode_sizes(n, LIMITS) for n in (1, 2, 4, 40)]
    assert scratch_bytes([(plan, buckets)]) == {"s": 40}
    assert scratch_bytes([(plan, buckets), (odd, buckets)]) == {"s": 4000}


class FakeWeights:
    path = "w"

    def __init__(self, spans):
        self.spans = spans


def test_weights_are_placed_side_by_side_in_few_runs():
    rng = random.Random(2)
    for _ in range(200):
        spans, at = {}, 0
        for i in range(rng.randint(1, 12)):
            size = 128 * rng.randint(1, 5)
            spans[f"t{i}"] = (at, at + size)
            at += size
        file = bytes(rng.randrange(256) for _ in range(at))
        used = {name for name in spans if rng.random() < 0.6}
        placed = place(FakeWeights(spans), used)
        device = bytearray(placed.num_bytes)
        for run in placed.runs:
            device[run.target : run.target + run.num_bytes] = file[run.source : run.source + run.num_bytes]
        for name in used:
            start, end = spans[name]
            offset = placed.offsets[name]
            assert offset % 128 == 0 and device[offset : offset + end - start] == file[start:end]
        neighbours = sum(f"t{int(name[1:]) - 1}" in used for name in used)
        assert len(placed.runs) == len(used) - neighbours and placed.num_bytes == sum(
            spans[name][1] - spans[name][0] for name in used
        )


def test_a_weight_that_the_file_lacks():
    with pytest.raises(FileMismatch, match="a plan wants 'b', which is not in it"):
        place(FakeWeights({"a": (0, 128)}), {"a", "b"})


KV = KvLayout(32, (KvGroup(None, 1000, 32, (KvSlot("l", 1, 1, 1, "bf16"),)),))


def test_pools_get_what_is_free_and_no_more_than_a_batch_uses(tmp_path):
    needs = Needs(weights=5000, arena=300, scratch=200)
    assert needs.total == 5500
    total = 64 * 10_000
    assert reserve_bytes(total) == 10_000 and reserve_bytes(1 << 40) == 1 << 30
    assert fit_pools(tmp_path, KV, LIMITS, needs, (total, total), None) == (624,)
    assert fit_pools(tmp_path, KV, LIMITS, needs, (1 << 30, total), None) == (40 * 20,)
    assert fit_pools(tmp_path, KV, LIMITS, needs, (total, total), 5999) == (5,)
    with pytest.raises(NotEnoughMemory, match=r"needs 16500 bytes .*5000 of weights, 500 of scratch, 1000 of KV"):
        fit_pools(tmp_path, KV, LIMITS, needs, (16_499, total), None)
    with pytest.raises(NotEnoughMemory, match=r"needs 715500 bytes .*700000 of KV.*640000 of 640000 are free"):
        fit_pools(tmp_path, KV, LIMITS, needs, (total, total), 700_000)


def test_which_gpu_runs_what():
    runs = {
        (8, 0): {"sm_80"},
        (8, 6): {"sm_80"},
        (8, 9): {"sm_80", "sm_89"},
        (9, 0): {"sm_90a"},
        (10, 0): {"sm_100a"},
        (12, 0): set(),
    }
    for (major, minor), archs in runs.items():
        gpu = Gpu("g", major, minor)
        assert {arch for arch in ("sm_80", "sm_89", "sm_90a", "sm_100a", "x86_64") if gpu.runs(arch)} == archs
    assert Gpu("g", 8, 9).is_exactly("sm_89") and not Gpu("g", 8, 9).is_exactly("sm_80")
