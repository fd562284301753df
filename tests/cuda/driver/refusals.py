"""Checks of what cuda.h calls an error: flags, handles, contexts, forks, tensor maps (checks.py)."""

from __future__ import annotations

import os

from cuda.bindings import driver as cu

from llmc.runtime.cuda.driver.driver import CudaError
from llmc.runtime.cuda.graph import tensor_maps
from llmc.runtime.cuda.graph.tensor_maps import TensorMap, encode_tensor_map
from llmc.runtime.cuda.plan import Box
from tests.cuda.driver.checks import FOLDER, ONES, R, forget_error, kernel, raises, run, stream
from tests.cuda.driver.cuda_calls import CallFailed, Ptr, add_node, alloc, launch, ok, upload


def flags_and_handles_are_checked() -> None:
    for refused in (
        lambda: cu.cuStreamCreate(2),
        lambda: cu.cuEventCreate(8),
        lambda: cu.cuMemHostAlloc(256, 8),
        lambda: cu.cuGraphCreate(1),
    ):
        raises(R.CUDA_ERROR_INVALID_VALUE, lambda f=refused: ok(f()))
    untimed, timed = (ok(cu.cuEventCreate(flags)) for flags in (2, 0))
    for event in (untimed, timed):
        ok(cu.cuEventRecord(event, 0))
        ok(cu.cuEventSynchronize(event))
    raises(R.CUDA_ERROR_INVALID_HANDLE, lambda: ok(cu.cuEventElapsedTime(untimed, timed)))
    ok(cu.cuEventDestroy(timed))
    for gone in (cu.cuEventDestroy, cu.cuEventSynchronize, lambda e: cu.cuEventRecord(e, 0)):
        raises(R.CUDA_ERROR_INVALID_HANDLE, lambda f=gone: ok(f(timed)))
    p = Ptr(upload(ONES))
    raises(R.CUDA_ERROR_INVALID_HANDLE, launch, cu.CUfunction(), (1,), 64, 0, (p, p, 1.0))
    raises(R.CUDA_ERROR_INVALID_VALUE, launch, kernel("add"), (1,), 64, 0, ())


def unloaded_modules_run_nothing() -> None:
    d = Ptr(upload(ONES))
    module = ok(cu.cuModuleLoadData((FOLDER / "driver_program.cubin").read_bytes()))
    function = ok(cu.cuModuleGetFunction(module, b"add"))
    graph = ok(cu.cuGraphCreate(0))
    add_node(graph, [], function, (1,), 64, 0, (d, d, 1.0))
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    s = stream()
    launch(function, (1,), 64, 0, (d, d, 1.0), s)
    ok(cu.cuModuleUnload(module))
    for gone in (cu.cuModuleUnload, lambda m: cu.cuModuleGetFunction(m, b"add")):
        raises(R.CUDA_ERROR_INVALID_HANDLE, lambda f=gone: ok(f(module)))
    raises(R.CUDA_ERROR_INVALID_HANDLE, launch, function, (1,), 64, 0, (d, d, 1.0), s)
    raises(R.CUDA_ERROR_INVALID_HANDLE, lambda: ok(cu.cuGraphLaunch(executable, s)))
    assert "unloaded before" in raises(R.CUDA_ERROR_LAUNCH_FAILED, lambda: ok(cu.cuStreamSynchronize(s)))
    forget_error()


def a_released_context_is_gone() -> None:
    here, dev = ok(cu.cuCtxGetCurrent()), ok(cu.cuDeviceGet(1))
    there = ok(cu.cuDevicePrimaryCtxRetain(dev))
    ok(cu.cuCtxSetCurrent(there))
    s = stream()
    ok(cu.cuDevicePrimaryCtxRelease(dev))
    raises(R.CUDA_ERROR_CONTEXT_IS_DESTROYED, alloc, 16)
    raises(R.CUDA_ERROR_INVALID_CONTEXT, lambda: ok(cu.cuDevicePrimaryCtxRelease(dev)))
    ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(dev))))
    raises(R.CUDA_ERROR_INVALID_HANDLE, lambda: ok(cu.cuStreamSynchronize(s)))
    ok(cu.cuDevicePrimaryCtxRelease(dev))
    raises(R.CUDA_ERROR_INVALID_CONTEXT, lambda: ok(cu.cuCtxSetCurrent(there)))
    ok(cu.cuCtxSetCurrent(here))


def contexts_are_stacked() -> None:
    """What is current is what was pushed last; setting one replaces it, and unsetting one pops it."""
    here, dev = ok(cu.cuCtxGetCurrent()), ok(cu.cuDeviceGet(1))
    raises(R.CUDA_ERROR_INVALID_CONTEXT, lambda: ok(cu.cuCtxPushCurrent(None)))
    there = ok(cu.cuDevicePrimaryCtxRetain(dev))
    ok(cu.cuCtxPushCurrent(there))
    ok(cu.cuCtxPushCurrent(here))
    ok(cu.cuCtxSetCurrent(there))
    assert [int(ok(cu.cuCtxPopCurrent())) for _ in range(2)] == [int(there), int(there)]
    assert int(ok(cu.cuCtxGetCurrent())) == int(here)
    ok(cu.cuCtxPushCurrent(there))
    ok(cu.cuCtxSetCurrent(None))
    assert int(ok(cu.cuCtxPopCurrent())) == int(here)
    raises(R.CUDA_ERROR_INVALID_CONTEXT, lambda: ok(cu.cuCtxPopCurrent()))
    ok(cu.cuDevicePrimaryCtxRelease(dev))
    raises(R.CUDA_ERROR_INVALID_CONTEXT, lambda: ok(cu.cuCtxPushCurrent(there)))
    ok(cu.cuCtxSetCurrent(here))


def a_forked_child_has_no_driver() -> None:
    child = os.fork()
    if not child:
        codes = (cu.cuInit(0)[0], cu.cuDeviceGet(0)[0], cu.cuMemGetInfo()[0], cu.cuCtxSetCurrent(0)[0])
        os._exit(0 if set(codes) == {R.CUDA_ERROR_NOT_INITIALIZED} else 1)
    assert os.waitpid(child, 0)[1] == 0
    ok(cu.cuMemGetInfo())


def _tensor_map(base: int, box: tuple[int, int], stride: int, swizzle: int = 128) -> None:
    """box: columns, rows."""
    try:
        encode_tensor_map(base, Box("bf16", 64, 128, stride, box[1], box[0], swizzle), 64)
    except CudaError as error:
        raise CallFailed(R[error.code]) from error


def tensor_maps_have_limits() -> None:
    p = alloc(1 << 16)
    _tensor_map(p, (64, 64), 256)
    for base, box, stride in (
        (p + 8, (64, 64), 256),
        (p, (128, 64), 256),
        (p, (64, 257), 256),
        (p, (64, 64), 264),
    ):
        raises(R.CUDA_ERROR_INVALID_VALUE, _tensor_map, base, box, stride)


def tensor_maps_are_aligned() -> None:
    """The driver's memory for one must be: cuda-python's object often is not, the runtime's always is."""
    p, kept = alloc(1 << 16), []
    for _ in range(20):
        made = encode_tensor_map(p, Box("bf16", 64, 128, 256, 64, 64, 128), 64)
        kept.append(made)
        assert made.getPtr() % 128 == 0
    aligned = TensorMap
    try:
        tensor_maps.TensorMap = Misaligned  # type: ignore[misc]
        assert "64-byte aligned" in raises(R.CUDA_ERROR_INVALID_VALUE, _tensor_map, p, (64, 64), 256)
    finally:
        tensor_maps.TensorMap = aligned  # type: ignore[misc]


class Misaligned(TensorMap):
    """As cuda-python's: at a multiple of 16 bytes."""

    def getPtr(self) -> int:
        return super().getPtr() + 16


CHECKS = [
    flags_and_handles_are_checked,
    unloaded_modules_run_nothing,
    a_released_context_is_gone,
    contexts_are_stacked,
    a_forked_child_has_no_driver,
    tensor_maps_have_limits,
    tensor_maps_are_aligned,
]

if __name__ == "__main__":
    run(CHECKS)
