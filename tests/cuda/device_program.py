"""Checks of the CUDA device on toy engines: `device_program.py FOLDER CHECK...` prints one JSON line per check.

FOLDER holds the engines that test_device.py wrote, by name.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cpu_sample import cpu_sample
from cuda.bindings import driver as cu
from cuda_calls import download
from refusing_driver import refusing
from toy_engine import BLOCK, MAX_BATCH, MAX_LEN, MAX_TOKENS, VALID, VOCAB, WINDOW, H, Model

from llmc.runtime import Engine, SamplingParams
from llmc.runtime.cuda.driver import CudaError
from llmc.runtime.errors import ChecksumMismatch, DeviceRefused, MachineMismatch, NotEnoughMemory, StepFailed
from llmc.runtime.request import TokenHistory
from llmc.runtime.row_sampling import RowSampling

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


def sampling_is_as_the_cpu_s() -> None:
    """Temperature, filters, penalties, biases and seeds of a batch, against the CPU's sampler on numpy's logits."""
    evens = tuple(range(0, VALID, 2))
    choices = [
        SamplingParams(temperature=40.0, seed=3, top_k=20, logprobs=2, max_tokens=8),
        SamplingParams(
            temperature=60.0, seed=2**63, repetition_penalty=1.5, presence_penalty=3.0, max_tokens=8, logprobs=0
        ),
        SamplingParams(
            temperature=0, logit_bias={4: -100.0, 7: 50.0}, frequency_penalty=2.0, max_tokens=8, logprobs=20
        ),
        SamplingParams(
            temperature=30.0,
            top_p=0.8,
            min_p=0.01,
            seed=9,
            min_tokens=5,
            stop_token_ids=evens,
            logprobs=1,
            max_tokens=8,
        ),
        SamplingParams(temperature=20.0, seed=1, max_tokens=8),
    ]
    asked = prompts(len(choices), seed=8)
    with loaded("toy") as engine:
        completions = engine.generate(asked, choices)
    for completion, prompt, params in zip(completions, asked, choices, strict=True):
        stop = frozenset(params.stop_token_ids)
        history, row = TokenHistory(prompt), RowSampling(params, completion.seed, len(prompt), stop)
        assert len(completion.token_ids) >= 5
        for index, token in enumerate(completion.token_ids):
            logits = np.ascontiguousarray(MODEL.logits(history.ids.tolist())[-1:])
            expected = cpu_sample(logits, [row.at(history.address, len(history))], VALID)
            assert token == expected.tokens[0], (params, index)
            if params.logprobs is not None:
                found = completion.logprobs[index]
                assert np.float32(found.logprob) == expected.logprob[0]
                top = [(int(i), float(v)) for i, v in zip(expected.top_ids[0], expected.top_logprobs[0], strict=True)]
                assert list(found.top) == top[: params.logprobs]
            history.append(token)


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
    """Rows beyond the counts of a step, in buckets larger than it, stay as they were at load: zero."""
    with loaded("toy") as engine:
        engine.generate(prompts(3, longest=5), max_tokens=3, **ASK)  # buckets of 4 sequences, of 16 tokens
        resident = engine.device._resident  # type: ignore[attr-defined]
        arena = resident.addresses
        h = download(arena.arena, (MAX_TOKENS, H), np.float32)
        used = max(np.flatnonzero(h.any(1))) + 1
        assert 3 <= used < 16, used
        rows = download(arena.arena + arena.layout.token_bytes, (MAX_BATCH, H), np.float32)
        assert rows[:3].any(1).all() and not rows[3:].any(), rows[:, 0]
        done = download(arena.scratch["done"], (1,), np.int32)
        assert done[0] == 0


def graphs_are_made_once_per_bucket() -> None:
    with loaded("toy") as engine:
        engine.generate(prompts(6), max_tokens=4, **ASK)
        engine.generate(prompts(2), max_tokens=4, **ASK)
        graphs = engine.device._entries  # type: ignore[attr-defined]
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
    current = ctypes.c_void_p(1)
    assert emulator().cuCtxGetCurrent(ctypes.byref(current)) == 0 and current.value is None
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
        behind = -(-(WINDOW - 1 + MAX_TOKENS - 1) // BLOCK) + 1  # blocks of a windowed sequence during a step
        assert engine.num_free_blocks == MAX_BATCH * (MAX_LEN // BLOCK + behind)


def not_even_the_arrays_of_steps() -> None:
    """The device has 64 KiB: what the whole engine needs is said all the same."""
    text = refusal(NotEnoughMemory, lambda: Engine.load(FOLDER / "toy").close())
    assert (
        "toy: needs 45060 bytes of device memory (16640 of weights, 27396 of scratch, 1024 of KV at least)" in text
    ), text
    assert "beside the arrays of steps: step inputs: " in text and "65536 are free" in text, text
    assert emulator().llmcEmuLiveAllocations() == 0


def a_load_that_fails_gives_all_back() -> None:
    """Damaged weights, found when they are on the device already; and a copy that CUDA refuses."""
    from llmc.runtime.cuda import upload

    before = emulator().llmcEmuLiveAllocations()
    text = refusal(ChecksumMismatch, lambda: Engine.load(FOLDER / "damaged"))
    assert "weights.safetensors: content is damaged" in text, text
    assert emulator().llmcEmuLiveAllocations() == before
    real = upload.call

    def refusing(function: Any, *arguments: Any) -> Any:
        if function.__name__ == "cuMemcpyHtoDAsync":
            raise CudaError("cuMemcpyHtoDAsync", "CUDA_ERROR_UNKNOWN", "a planted error")
        return real(function, *arguments)

    upload.call = refusing
    try:
        text = refusal(DeviceRefused, lambda: Engine.load(FOLDER / "toy"))
    finally:
        upload.call = real
    assert "h100 cannot be made ready: cuMemcpyHtoDAsync: CUDA_ERROR_UNKNOWN: a planted error" in text, text
    assert emulator().llmcEmuLiveAllocations() == before
    with loaded("toy") as engine:
        assert list(engine.generate([[3]], max_tokens=2, **ASK)[0].token_ids) == MODEL.answer([3], 2)


def weights_come_in_many_pieces() -> None:
    """Of a size that no tensor's bytes are a multiple of."""
    from llmc.runtime.cuda import upload

    upload.PIECE_BYTES = 1000
    with loaded("toy") as engine:
        np.testing.assert_array_equal(engine.logits([7, 8]), MODEL.logits([7, 8]))


def a_refused_launch_names_its_kernel() -> None:
    with loaded("too_much_shared") as engine:
        text = refusal(StepFailed, lambda: engine.generate([[1, 2]], max_tokens=1, **ASK))
        assert "attend (attend toy.attend; grid 16 x 1 x 1, block 64," in text and "CUDA_ERROR_INVALID_VALUE" in text, (
            text
        )
        # the decode entry is sound, and so is the device
        handle = engine.submit([3], max_tokens=2, **ASK)
        assert list(handle.result().token_ids) == MODEL.answer([3], 2)


def a_fault_ends_the_device() -> None:
    before = emulator().llmcEmuLiveAllocations()
    with loaded("beyond") as engine:
        handle = engine.submit([1, 2, 3], max_tokens=4, **ASK)
        text = refusal(StepFailed, engine.step)
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in text and "3 tokens" in text and "serial=True" in text, text
        assert isinstance(handle.completion and handle.completion.error, StepFailed)
        engine.submit([4], max_tokens=1, **ASK)
        assert "loaded anew" in refusal(StepFailed, engine.step)
    forget_error()
    assert emulator().llmcEmuLiveAllocations() >= before  # a broken context gives nothing back


def kernels_one_by_one_name_what_faults() -> None:
    asked = prompts(3)
    with loaded("toy", serial=True) as engine:
        found = engine.generate(asked, max_tokens=4, **ASK)
        assert [list(c.token_ids) for c in found] == [MODEL.answer(p, 4) for p in asked]
    with loaded("beyond", serial=True) as engine:
        text = refusal(StepFailed, lambda: engine.generate([[1]], max_tokens=1, **ASK))
        assert "beyond (embed toy.embed; grid 1 x 1 x 1, block 32," in text and "ILLEGAL_ADDRESS" in text, text
        assert "loaded anew" in refusal(StepFailed, lambda: engine.generate([[1]], max_tokens=1, **ASK))
    forget_error()


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


def a_fork_is_told_that_the_engine_is_not_its_own() -> None:
    """It says so at once instead of waiting for a GPU that is another process's; the parent's goes on."""
    with loaded("toy") as engine:
        engine.generate([[1, 2]], max_tokens=2, **ASK)
        child = os.fork()
        if child == 0:
            code = 1
            signal.alarm(60)
            try:
                text = refusal(StepFailed, lambda: engine.generate([[1, 2]], max_tokens=2, **ASK))
                engine.close()
                code = 0 if "a fork cannot use that one's GPU" in text else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert list(engine.generate([[3]], max_tokens=2, **ASK)[0].token_ids) == MODEL.answer([3], 2)


def every_missing_edge_shows() -> None:
    """Engines `edge-<launch>-<before>` lack one edge each: checked twins report a race."""
    names = sorted(path.name for path in FOLDER.glob("edge-*"))
    assert len(names) == 11, names
    for name in names:
        with loaded(name) as engine:
            text = refusal(StepFailed, lambda e=engine: e.generate([[1, 2, 3, 4, 5]], max_tokens=2, **ASK))
            assert "race" in text or "uninitialised read" in text, (name, text)
            forget_error()


def only_the_gpu_it_was_built_for() -> None:
    """The device is an A100."""
    text = refusal(MachineMismatch, lambda: Engine.load(FOLDER / "toy"))
    here = "the GPU here is an NVIDIA A100 (llmc emulator) (compute capability 8.0)"
    assert f"built for h100 (sm_90a), {here}" in text and "--emulate" in text, text


def cuda_comes_first() -> None:
    """An engine with a CPU target that this machine runs, and before it in the manifest."""
    with loaded("mixed") as engine:
        assert engine.artifact.target.kind == "cuda"
        assert engine.artifact.passed_over[0].startswith("built for a100 (sm_80), the GPU here is an NVIDIA H100")


def a_driver_without_programmatic_edges() -> None:
    """The same answers, by graphs of full edges; told once for both entries, and not asked for again."""
    asked = prompts(4)
    expected = [MODEL.answer(p, 5) for p in asked]
    for function in ("cuGraphAddDependencies", "cuGraphInstantiate"):
        told: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record, told=told: told.append(record.getMessage())  # type: ignore[misc, method-assign]
        edges: list[int] = []
        logging.getLogger("llmc").addHandler(handler)
        try:
            with refusing(function, edges), loaded("toy") as engine:
                first = list(engine.generate(asked[:1], max_tokens=5, **ASK)[0].token_ids)
                before = len(edges)
                found = [list(c.token_ids) for c in engine.generate(asked, max_tokens=5, **ASK)]
        finally:
            logging.getLogger("llmc").removeHandler(handler)
        assert first == expected[0] and found == expected, (function, first, found, expected)
        assert len(edges) == before >= 1, (function, before, edges)
        assert len(told) == 1 and f"programmatic edges ({function}" in told[0], told


def a_graph_that_is_refused_for_another_reason() -> None:
    """Is not built again, and nothing is said of edges."""
    instantiate = cu.cuGraphInstantiate
    calls: list[int] = []

    def out_of_memory(graph: Any, flags: int) -> Any:
        calls.append(1)
        return cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None

    with loaded("toy") as engine:
        cu.cuGraphInstantiate = out_of_memory
        try:
            text = refusal(StepFailed, engine.submit([1], max_tokens=2, **ASK).result)
        finally:
            cu.cuGraphInstantiate = instantiate
    assert calls == [1] and "CUDA_ERROR_OUT_OF_MEMORY" in text, (calls, text)


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
