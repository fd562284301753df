"""Checks of the CUDA device on toy engines: `device_program.py FOLDER CHECK...` prints one JSON line per check.

FOLDER holds the engines that test_device.py wrote, by name.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cuda_calls import download
from toy_engine import BLOCK, MAX_BATCH, MAX_TOKENS, VALID, VOCAB, H, Model

from llmc.runtime import Engine
from llmc.runtime.errors import MachineMismatch, NotEnoughMemory, StepFailed

FOLDER = Path(sys.argv[1])
MODEL = Model.random()
ASK = dict(temperature=0, ignore_eos=True)


def emulator() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    library.llmcEmuLiveAllocations.restype = library.llmcEmuKernelsRun.restype = ctypes.c_ulonglong
    return library


def forget_error() -> None:
    emulator().llmcEmuReset()


@contextmanager
def loaded(name: str, **options: Any) -> Iterator[Engine]:
    with Engine.load(FOLDER / name, **options) as engine:
        yield engine


def prompts(count: int, seed: int = 1, longest: int = 20) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VALID, rng.integers(1, longest)).tolist() for _ in range(count)]


def refusal(kind: type[Exception], action: Any) -> str:
    try:
        action()
    except kind as error:
        assert "\n" not in str(error), error
        return str(error)
    raise AssertionError(f"expected {kind.__name__}")


def answers_in_any_company() -> None:
    """Prompts in chunks, batches that join and leave, solo: all as numpy computes them."""
    asked = prompts(9)
    counts = [3 + i % 5 for i in range(9)]
    expected = [MODEL.answer(p, n) for p, n in zip(asked, counts, strict=True)]
    for options in ({}, {"max_tokens": 7, "max_batch": 4}, {"max_batch": 1, "max_tokens": 3}):
        with loaded("toy", **options) as engine:
            handles = [engine.submit(p, max_tokens=n, **ASK) for p, n in zip(asked, counts, strict=True)]
            found = [list(h.result().token_ids) for h in handles]
            assert found == expected, (options, found, expected)
            engine.check_integrity()


def log_probabilities() -> None:
    with loaded("toy") as engine:
        (completion,) = engine.generate([[5, 9, 2]], max_tokens=4, logprobs=3, **ASK)
        ids = [5, 9, 2, *completion.token_ids]
        for at, entry in enumerate(completion.logprobs):
            logits = MODEL.logits(ids[: 3 + at])[-1]
            assert entry.logprob == logits[:VALID].max(), (entry, logits)


def logits_of_any_rows_in_any_chunks() -> None:
    (ids,) = prompts(1, seed=3, longest=60)
    ids = (ids * 5)[:37]
    expected = MODEL.logits(ids)
    with loaded("toy", max_rows=30) as engine:
        for rows, chunks in ((None, None), ([36, 0, 5, 5], None), ([20], [1, 5, 30, 1]), (list(range(30)), [30, 7])):
            found = engine.logits(ids, rows=rows, chunks=chunks)
            np.testing.assert_array_equal(found, expected if rows is None else expected[rows])
        np.testing.assert_array_equal(engine.logits([7])[0], MODEL.logits([7])[0])


def padding_is_inert() -> None:
    """Rows beyond the counts of a step, in buckets larger than it, keep the poison of fresh memory."""
    with loaded("toy") as engine:
        engine.generate(prompts(3, longest=5), max_tokens=3, **ASK)  # buckets of 4 sequences, of 16 tokens
        resident = engine.device._resident  # type: ignore[attr-defined]
        arena = resident.addresses
        h = download(arena.arena, (MAX_TOKENS, H), np.float32)
        used = max(np.flatnonzero(~np.isnan(h).any(1))) + 1
        assert 3 <= used < 16 and np.isnan(h[used:]).all(), used
        rows = download(arena.arena + arena.layout.token_bytes, (MAX_BATCH, H), np.float32)
        assert not np.isnan(rows[:3]).any() and np.isnan(rows[3:]).all(), rows[:, 0]
        done = download(arena.scratch["done"], (1,), np.int32)
        assert done[0] == 0


def graphs_are_made_once_per_bucket() -> None:
    with loaded("toy") as engine:
        engine.generate(prompts(6), max_tokens=4, **ASK)
        engine.generate(prompts(2), max_tokens=4, **ASK)
        graphs = engine.device._graphs  # type: ignore[attr-defined]
        ready = {entry: dict(g._ready) for entry, g in graphs.items()}
        assert {s.seqs for s in ready["decode"]} <= {1, 2, 4, 6} and len(ready["decode"]) >= 2, ready["decode"]
        engine.generate(prompts(6, seed=4), max_tokens=4, **ASK)
        engine.generate(prompts(2, seed=4), max_tokens=4, **ASK)
        for entry, g in graphs.items():
            assert all(g._ready[s] is e for s, e in ready[entry].items())


def memory_is_divided_and_given_back() -> None:
    before = emulator().llmcEmuLiveAllocations()
    with loaded("toy", kv_memory=10 * 512 + 300) as engine:
        assert engine.num_free_blocks == 10
        memory = engine.device.memory
        assert memory.kv_bytes == 10 * 512
        assert memory.weights_bytes == 4 * (2 * VOCAB * H + VOCAB), memory
        # what another target of the engine uses is not copied
        resident = engine.device._resident  # type: ignore[attr-defined]
        base = min(resident.addresses.weights.values())
        on_device = download(base, (2 * VOCAB * H + VOCAB,), np.float32)
        np.testing.assert_array_equal(
            on_device, np.concatenate([MODEL.embedding.ravel(), MODEL.head.ravel(), MODEL.bias])
        )
        engine.generate(prompts(2), max_tokens=3, **ASK)
    assert emulator().llmcEmuLiveAllocations() == before
    engine.close()
    assert "closed" in refusal(StepFailed, lambda: engine.device.decode(engine._buffers))


def preemption_gives_the_same_answers() -> None:
    asked = prompts(6, longest=12)
    expected = [MODEL.answer(p, 12) for p in asked]
    with loaded("toy", kv_memory=12 * 512) as engine:
        found = engine.generate(asked, max_tokens=12, **ASK)
        assert sum(c.num_preemptions for c in found) > 0
        assert [list(c.token_ids) for c in found] == expected


def too_little_memory() -> None:
    """The device has 1 MiB."""
    before = emulator().llmcEmuLiveAllocations()
    text = refusal(NotEnoughMemory, lambda: Engine.load(FOLDER / "toy", kv_memory=1000 << 10).close())
    assert "16640 of weights" in text and "1024000 of KV" in text and "of 1048576 are free" in text, text
    assert emulator().llmcEmuLiveAllocations() == before
    with loaded("toy") as engine:  # what is free holds a full batch
        assert engine.num_free_blocks == MAX_BATCH * 64 // BLOCK


def a_refused_launch_names_its_kernel() -> None:
    with loaded("too_much_shared") as engine:
        text = refusal(StepFailed, lambda: engine.generate([[1, 2]], max_tokens=1, **ASK))
        assert "attend (attend toy.attend; grid 16, block 64," in text and "CUDA_ERROR_INVALID_VALUE" in text, text
        # the decode entry is sound, and so is the device
        handle = engine.submit([3], max_tokens=2, **ASK)
        assert list(handle.result().token_ids) == MODEL.answer([3], 2)


def a_fault_ends_the_device() -> None:
    before = emulator().llmcEmuLiveAllocations()
    with loaded("beyond") as engine:
        handle = engine.submit([1, 2, 3], max_tokens=4, **ASK)
        text = refusal(StepFailed, engine.step)
        assert "beyond" in text and "CUDA_ERROR_ILLEGAL_ADDRESS" in text and "3 tokens" in text, text
        assert isinstance(handle.completion and handle.completion.error, StepFailed)
        engine.submit([4], max_tokens=1, **ASK)
        assert "loaded anew" in refusal(StepFailed, engine.step)
    forget_error()
    assert emulator().llmcEmuLiveAllocations() >= before  # a broken context gives nothing back


def an_interrupted_step_leaves_a_sound_engine() -> None:
    with loaded("toy") as engine:
        device: Any = engine.device
        context = device._resident.context
        real = context.synchronize

        def interrupted() -> None:
            context.synchronize = real
            raise KeyboardInterrupt

        context.synchronize = interrupted
        handle = engine.submit([1, 2, 3], max_tokens=2, **ASK)
        try:
            engine.step()
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("not interrupted")
        assert isinstance(handle.completion and handle.completion.error, StepFailed)
        asked = prompts(4)
        found = engine.generate(asked, max_tokens=3, **ASK)
        assert [list(c.token_ids) for c in found] == [MODEL.answer(p, 3) for p in asked]
        context.synchronize = interrupted
        engine.submit([1, 2, 3], max_tokens=2, **ASK)
        try:
            engine.step()
        except KeyboardInterrupt:
            context.synchronize = real
    assert device._resident is None


def every_missing_edge_shows() -> None:
    """Engines `edge-<launch>-<before>` lack one edge each: checked twins report a race."""
    names = sorted(path.name for path in FOLDER.glob("edge-*"))
    assert len(names) == 8, names
    for name in names:
        with loaded(name) as engine:
            text = refusal(StepFailed, lambda e=engine: e.generate([[1, 2, 3, 4, 5]], max_tokens=2, **ASK))
            assert "race" in text or "uninitialised read" in text, (name, text)
            forget_error()


def only_the_gpu_it_was_built_for() -> None:
    """The device is an A100."""
    text = refusal(MachineMismatch, lambda: Engine.load(FOLDER / "toy"))
    assert "built for h100 (sm_90a)" in text and "compute capability 8.0" in text and "--emulate" in text, text


def cuda_comes_first() -> None:
    """An engine with a CPU target that this machine runs, and before it in the manifest."""
    with loaded("mixed") as engine:
        assert engine.artifact.target.kind == "cuda"
        assert engine.artifact.passed_over[0].startswith("built for a100 (sm_80), the GPU here is an NVIDIA H100")


def an_old_driver() -> None:
    from llmc.runtime.cuda import gpu

    gpu.MIN_CUDA = (14, 2)
    text = refusal(MachineMismatch, lambda: Engine.load(FOLDER / "toy"))
    assert "needs a driver for CUDA 14.2" in text and "goes to CUDA 13.0" in text, text


def main() -> None:
    for name in sys.argv[2:]:
        try:
            globals()[name]()
            print(json.dumps({"check": name, "problem": ""}), flush=True)
        except Exception:
            print(json.dumps({"check": name, "problem": traceback.format_exc()}), flush=True)
            forget_error()
    if os.environ.get("LLMC_EMU_CHECK") == "race":
        assert emulator().llmcEmuKernelsRun() or sys.argv[2:] == ["only_the_gpu_it_was_built_for"]


if __name__ == "__main__":
    main()
