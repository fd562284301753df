"""Checks of devices, memory, streams, events, launches and errors (checks.py says how they run)."""

from __future__ import annotations

import ctypes
import resource
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from tests.cuda.driver.checks import FOLDER, ONES, R, forget_error, kernel, raises, run, stream, value
from tests.cuda.driver.cuda_calls import Ptr, alloc, download, launch, load, ok, params, upload
from tests.cuda.driver.sources import SOURCE


def devices() -> None:
    attribute = cu.CUdevice_attribute
    assert ok(cu.cuDeviceGetCount()) == 2
    dev = ok(cu.cuDeviceGet(0))
    assert b"H100" in ok(cu.cuDeviceGetName(64, dev))
    assert ok(cu.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, dev)) == 132
    assert ok(cu.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev)) == 9
    assert (
        ok(cu.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, dev)) == 227 << 10
    )
    raises(R.CUDA_ERROR_INVALID_DEVICE, lambda: ok(cu.cuDeviceGet(2)))


def memory_is_poisoned_counted_and_finite() -> None:
    free, total = ok(cu.cuMemGetInfo())
    assert total == 1 << 30
    p = alloc(1 << 20)
    assert ok(cu.cuMemGetInfo())[0] == free - (1 << 20)
    assert np.isnan(download(p, (4,), np.float32)).all()
    ok(cu.cuMemFree(p))
    assert ok(cu.cuMemGetInfo())[0] == free
    raises(R.CUDA_ERROR_OUT_OF_MEMORY, alloc, 2 << 30)
    raises(R.CUDA_ERROR_INVALID_VALUE, lambda: ok(cu.cuMemFree(p)))
    raises(R.CUDA_ERROR_INVALID_VALUE, lambda: ok(cu.cuMemcpyHtoD(p, ONES.ctypes.data, 256)))


def large_memory_takes_pages_when_it_is_written() -> None:
    """A pool as large as a device's is poisoned as well, and costs a laptop what is used of it."""

    def most_resident_bytes() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    before, size = most_resident_bytes(), 800 << 20
    p = alloc(size)
    ends = (p, p + (size // 2), p + size - 256)
    for at in ends:
        assert np.isnan(download(at, (64,), np.float32)).all()
        ok(cu.cuMemcpyHtoD(at, ONES.ctypes.data, 256))
    assert all((download(at, (64,), np.float32) == 1).all() for at in ends)
    assert np.isnan(download(p + 256, (64,), np.float32)).all()
    ok(cu.cuMemFree(p))
    assert most_resident_bytes() - before < 100 << 20, "the race detector's shadow is 16 times as large"
    raises(R.CUDA_ERROR_INVALID_VALUE, lambda: ok(cu.cuMemcpyHtoD(p, ONES.ctypes.data, 256)))


def pools_free_in_stream_order() -> None:
    s = stream()
    pool = ok(cu.cuDeviceGetDefaultMemPool(0))
    p, q = ok(cu.cuMemAllocFromPoolAsync(256, pool, s)), upload(ONES)
    ok(cu.cuMemsetD32Async(p, 0, 64, s))
    launch(kernel("add"), (1,), 64, 0, (Ptr(q), Ptr(p), 1.0), s)
    ok(cu.cuMemFreeAsync(p, s))
    ok(cu.cuStreamSynchronize(s))
    assert value(q) == 1.0
    raises(R.CUDA_ERROR_INVALID_VALUE, lambda: ok(cu.cuMemFreeAsync(p, s)))


def streams_are_lazy() -> None:
    s, d = stream(), upload(np.zeros(64, np.float32))
    pinned = ok(cu.cuMemHostAlloc(256, 0))
    host = np.ctypeslib.as_array(ctypes.cast(int(pinned), ctypes.POINTER(ctypes.c_float)), (64,))
    host[:] = 5
    launch(kernel("add"), (1,), 64, 0, (Ptr(d), Ptr(upload(ONES)), 3.0), s)
    ok(cu.cuMemcpyDtoHAsync(pinned, d, 256, s))
    assert host[0] == 5, "the copy ran before anything waited for it"
    event = ok(cu.cuEventCreate(0))
    ok(cu.cuEventRecord(event, s))
    assert cu.cuEventQuery(event)[0] == R.CUDA_ERROR_NOT_READY
    ok(cu.cuEventSynchronize(event))
    assert host[0] == 3
    assert cu.cuStreamQuery(s)[0] == R.CUDA_SUCCESS
    ok(cu.cuStreamDestroy(s))
    raises(R.CUDA_ERROR_INVALID_HANDLE, lambda: ok(cu.cuStreamSynchronize(s)))


def elapsed_time_between_events() -> None:
    s, events = stream(), [ok(cu.cuEventCreate(0)) for _ in range(2)]
    ok(cu.cuEventRecord(events[0], s))
    launch(kernel("add"), (1,), 64, 0, (Ptr(upload(ONES)), Ptr(upload(ONES)), 1.0), s)
    ok(cu.cuEventRecord(events[1], s))
    assert cu.cuEventElapsedTime(*events)[0] == R.CUDA_ERROR_NOT_READY
    ok(cu.cuEventSynchronize(events[1]))
    assert ok(cu.cuEventElapsedTime(*events)) >= 0


def limits_of_a_launch() -> None:
    p = Ptr(upload(ONES))
    args = (p, p, 1.0)
    report = raises(R.CUDA_ERROR_INVALID_VALUE, launch, kernel("add"), (1,), 64, 64 << 10, args)
    assert "cuFuncSetAttribute" in report and "65536" in report
    optin = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    raises(R.CUDA_ERROR_INVALID_VALUE, lambda: ok(cu.cuFuncSetAttribute(kernel("add"), optin, 228 << 10)))
    raises(R.CUDA_ERROR_INVALID_VALUE, launch, kernel("add"), (1,), 65, 0, args)  # compiled for 64
    raises(R.CUDA_ERROR_INVALID_VALUE, launch, kernel("many_registers"), (1,), 1025, 0, (p, 1))
    raises(R.CUDA_ERROR_INVALID_VALUE, launch, kernel("add"), (1, 65536), 64, 0, args)
    report = raises(R.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, launch, kernel("many_registers"), (1,), 1024, 0, (p, 1))
    assert "registers x 1024 threads" in report
    registers = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
    assert ok(cu.cuFuncGetAttribute(registers, kernel("many_registers"))) > 64
    raises(R.CUDA_ERROR_NOT_FOUND, kernel, "nothing")


def static_shared_memory_counts() -> None:
    """48,000 bytes of it leave 1,152 without asking."""
    function, p = load(FOLDER, "static_shared", "kept"), Ptr(upload(ONES))
    attribute = cu.CUfunction_attribute
    assert ok(cu.cuFuncGetAttribute(attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function)) == 48000
    launch(function, (1,), 64, 1152, (p,))
    raises(R.CUDA_ERROR_INVALID_VALUE, launch, function, (1,), 64, 1153, (p,))
    optin = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    raises(R.CUDA_ERROR_INVALID_VALUE, lambda: ok(cu.cuFuncSetAttribute(function, optin, (227 << 10) - 47999)))
    ok(cu.cuFuncSetAttribute(function, optin, (227 << 10) - 48000))
    ok(cu.cuStreamSynchronize(0))


def another_architecture_is_refused() -> None:
    raises(R.CUDA_ERROR_NO_BINARY_FOR_GPU, load, FOLDER, "for_sm_80", "add")
    raises(R.CUDA_ERROR_INVALID_IMAGE, lambda: ok(cu.cuModuleLoadData(b"not a cubin at all" * 10)))


def errors_are_sticky_and_name_the_line() -> None:
    p = Ptr(upload(ONES))
    launch(kernel("beyond"), (1,), 64, 0, (p,))
    line = 1 + next(i for i, row in enumerate(SOURCE.splitlines()) if "to + threadIdx.x + 64" in row)
    report = raises(R.CUDA_ERROR_ILLEGAL_ADDRESS, lambda: ok(cu.cuStreamSynchronize(0)))
    assert f"driver_program.cu:{line}" in report and "an illegal memory access was encountered" in report, report
    raises(R.CUDA_ERROR_ILLEGAL_ADDRESS, alloc, 16)
    forget_error()
    ok(cu.cuMemFree(alloc(16)))


def _launch_ex(attribute: Any, d: int) -> None:
    config = cu.CUlaunchConfig()
    config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    config.blockDimX, config.attrs, config.numAttrs = 64, [attribute], 1
    ok(cu.cuLaunchKernelEx(config, kernel("add"), params((Ptr(d), Ptr(d), 1.0)), 0))


def launch_attributes() -> None:
    d = upload(ONES)
    pdl = cu.CUlaunchAttribute()
    pdl.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    pdl.value.programmaticStreamSerializationAllowed = 1
    _launch_ex(pdl, d)
    _launch_ex(pdl, d)
    assert value(d) == 4
    cluster = cu.CUlaunchAttribute()
    cluster.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = 2, 1, 1
    assert "clusters" in raises(R.CUDA_ERROR_NOT_SUPPORTED, _launch_ex, cluster, d)


def peer_access() -> None:
    here = ok(cu.cuCtxGetCurrent())
    there = ok(cu.cuDevicePrimaryCtxRetain(ok(cu.cuDeviceGet(1))))
    ok(cu.cuCtxSetCurrent(there))
    far = upload(3 * ONES)
    ok(cu.cuCtxSetCurrent(here))
    near = upload(2 * ONES)
    launch(kernel("move"), (1,), 64, 0, (Ptr(near), Ptr(far)))
    assert "peer access" in raises(R.CUDA_ERROR_ILLEGAL_ADDRESS, lambda: ok(cu.cuCtxSynchronize()))
    forget_error()
    assert ok(cu.cuDeviceCanAccessPeer(0, 1)) == 1
    ok(cu.cuCtxEnablePeerAccess(there, 0))
    launch(kernel("move"), (1,), 64, 0, (Ptr(near), Ptr(far)))
    ok(cu.cuCtxSynchronize())
    assert value(near) == 3


CHECKS = [
    devices,
    memory_is_poisoned_counted_and_finite,
    large_memory_takes_pages_when_it_is_written,
    pools_free_in_stream_order,
    streams_are_lazy,
    elapsed_time_between_events,
    limits_of_a_launch,
    static_shared_memory_counts,
    another_architecture_is_refused,
    errors_are_sticky_and_name_the_line,
    launch_attributes,
    peer_access,
]

if __name__ == "__main__":
    run(CHECKS)
