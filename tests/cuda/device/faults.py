"""Checks of what the CUDA device makes of memory, faults, refusals and interrupts (checks.py)."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any
from unittest import mock

import numpy as np
from cuda.bindings import driver as cu

from llmc.runtime import Engine
from llmc.runtime.cuda.driver.driver import CudaError, call
from llmc.runtime.cuda.memory import upload
from llmc.runtime.errors import ChecksumMismatch, DeviceRefused, MachineMismatch, NotEnoughMemory, StepFailed
from llmc.runtime.step.arrays import StepBuffers
from tests.cuda.device.checks import ASK, FOLDER, MODEL, emulator, forget_error, loaded, prompts, refusal, run
from tests.cuda.device.toy_engine import BLOCK, MAX_BATCH, MAX_LEN, MAX_TOKENS, VOCAB, WINDOW, H
from tests.cuda.driver.cuda_calls import download


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
        with resident.context.current():
            on_device = download(base, (2 * VOCAB * H + VOCAB,), np.float32)
        np.testing.assert_array_equal(
            on_device, np.concatenate([MODEL.embedding.ravel(), MODEL.head.ravel(), MODEL.bias])
        )
        engine.generate(prompts(2), max_tokens=3, **ASK)
    assert emulator().llmcEmuLiveAllocations() == before
    current = ctypes.c_void_p(1)
    assert emulator().cuCtxGetCurrent(ctypes.byref(current)) == 0 and current.value is None
    engine.close()
    assert "closed" in refusal(StepFailed, lambda: engine.device.decode(StepBuffers(engine.device.limits)))


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
    before = emulator().llmcEmuLiveAllocations()
    text = refusal(ChecksumMismatch, lambda: Engine.load(FOLDER / "damaged"))
    assert "weights.safetensors: content is damaged" in text, text
    assert emulator().llmcEmuLiveAllocations() == before

    def refusing(function: Any, *arguments: Any) -> Any:
        if function.__name__ == "cuMemcpyHtoDAsync":
            raise CudaError("cuMemcpyHtoDAsync", "CUDA_ERROR_UNKNOWN", "a planted error")
        return call(function, *arguments)

    with mock.patch.object(upload, "call", refusing):
        text = refusal(DeviceRefused, lambda: Engine.load(FOLDER / "toy"))
    assert "h100 cannot be made ready: cuMemcpyHtoDAsync: CUDA_ERROR_UNKNOWN: a planted error" in text, text
    assert emulator().llmcEmuLiveAllocations() == before
    with loaded("toy") as engine:
        assert list(engine.generate([[3]], max_tokens=2, **ASK)[0].token_ids) == MODEL.answer([3], 2)


def weights_come_in_many_pieces() -> None:
    """Of a size that no tensor's bytes are a multiple of."""
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
        text = refusal(StepFailed, handle.result)  # the step that waits for the one that faults
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
            engine.step()  # which waits for the first
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
            engine.step()  # which waits for the first
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


def only_the_gpu_it_was_built_for() -> None:
    """The device is an A100."""
    text = refusal(MachineMismatch, lambda: Engine.load(FOLDER / "toy"))
    here = "the GPU here is an NVIDIA A100 80GB SXM (llmc emulator) (compute capability 8.0)"
    assert f"built for h100 (sm_90a), {here}" in text and "--emulate" in text, text


def cuda_comes_first() -> None:
    """An engine with a CPU target that this machine runs, and before it in the manifest."""
    with loaded("mixed") as engine:
        assert engine.artifact.target.kind == "cuda"
        assert engine.artifact.passed_over[0].startswith("built for a100 (sm_80), the GPU here is an NVIDIA H100")


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
    from llmc.runtime.cuda.driver import gpu

    gpu.MIN_CUDA = (14, 2)
    text = refusal(MachineMismatch, lambda: Engine.load(FOLDER / "toy"))
    assert "needs a driver for CUDA 14.2" in text and "goes to CUDA 13.0" in text, text


if __name__ == "__main__":
    run(globals())
