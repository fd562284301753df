"""Checks of the driver API through unmodified cuda-python: `driver_program.py FOLDER` prints one JSON
line per check."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver as cu
from cuda_calls import CallFailed, Ptr, add_node, alloc, context, download, launch, load, ok, params, upload

from llmc.runtime.cuda import tensor_maps
from llmc.runtime.cuda.driver import CudaError
from llmc.runtime.cuda.plan import Box
from llmc.runtime.cuda.tensor_maps import TensorMap, encode_tensor_map

SOURCE = """#include "device.cuh"
LLMC_KERNEL(64, 1) add(float* to, const float* from, float scale) {
  grid_wait();
  to[threadIdx.x] += from[threadIdx.x] * scale;
}
LLMC_EXPORT(add)
LLMC_KERNEL(64, 1) beyond(float* to) {
  store4(to + threadIdx.x + 64, 0u);
}
LLMC_EXPORT(beyond)
LLMC_KERNEL(64, 1) move(float* to, const float* from) {
  store4(to + threadIdx.x, load4(from + threadIdx.x));
}
LLMC_EXPORT(move)
extern "C" __global__ void many_registers(float* p, int n) {
  float v[120];
  for (int i = 0; i < 120; i++) v[i] = p[i * 7];
  for (int k = 0; k < n; k++)
    for (int i = 0; i < 120; i++) v[i] = v[i] * v[(i + 1) % 120] + v[(i + 7) % 120];
  for (int i = 0; i < 120; i++) p[i * 7] = v[i];
}
LLMC_EXPORT(many_registers)
"""
FOLDER = Path(sys.argv[1])
R = cu.CUresult
ONES = np.ones(64, np.float32)


def raises(code: Any, f: Callable[..., Any], *args: Any) -> str:
    try:
        f(*args)
    except CallFailed as e:
        assert e.code == code, f"expected {code.name}, got {e}"
        return str(e)
    raise AssertionError(f"expected {code.name}, the call succeeded")


def forget_error() -> None:
    ctypes.CDLL("libcuda.so.1").llmcEmuReset()


def kernel(name: str) -> Any:
    return load(FOLDER, "driver_program", name)


def stream() -> Any:
    return ok(cu.cuStreamCreate(1))


def value(p: int) -> float:
    return float(download(p, (64,), np.float32)[0])


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

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before, size = resident_bytes(), 800 << 20
    p = alloc(size)
    ends = (p, p + (size // 2), p + size - 256)
    for at in ends:
        assert np.isnan(download(at, (64,), np.float32)).all()
        ok(cu.cuMemcpyHtoD(at, ONES.ctypes.data, 256))
    assert all((download(at, (64,), np.float32) == 1).all() for at in ends)
    assert np.isnan(download(p + 256, (64,), np.float32)).all()
    assert resident_bytes() - before < 100 << 20
    ok(cu.cuMemFree(p))
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


def _capture(join: bool) -> Any:
    a, b, d = stream(), stream(), upload(np.zeros(64, np.float32))
    one, fork, joined = Ptr(upload(ONES)), ok(cu.cuEventCreate(0)), ok(cu.cuEventCreate(0))
    ok(cu.cuStreamBeginCapture(a, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    launch(kernel("add"), (1,), 64, 0, (Ptr(d), one, 1.0), a)
    ok(cu.cuEventRecord(fork, a))
    ok(cu.cuStreamWaitEvent(b, fork, 0))
    launch(kernel("add"), (1,), 64, 0, (Ptr(d), one, 10.0), b)
    if join:
        ok(cu.cuEventRecord(joined, b))
        ok(cu.cuStreamWaitEvent(a, joined, 0))
        launch(kernel("add"), (1,), 64, 0, (Ptr(d), one, 100.0), a)
    assert ok(cu.cuStreamIsCapturing(b)) == cu.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    raises(R.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, lambda: ok(cu.cuStreamSynchronize(a)))
    return ok(cu.cuStreamEndCapture(a)), d


def capture_follows_events() -> None:
    graph, d = _capture(True)
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    assert value(d) == 0, "captured work must not run"
    for n in (1, 2):
        ok(cu.cuGraphLaunch(executable, 0))
        assert value(d) == 111 * n
    raises(R.CUDA_ERROR_STREAM_CAPTURE_UNJOINED, _capture, False)


def graphs_by_node_are_updated_and_relaunched() -> None:
    d, other, one = (upload(x) for x in (np.zeros(64, np.float32), np.zeros(64, np.float32), ONES))
    graph = ok(cu.cuGraphCreate(0))
    first = add_node(graph, [], kernel("add"), (1,), 64, 0, (Ptr(d), Ptr(one), 1.0))
    memset = cu.CUDA_MEMSET_NODE_PARAMS()
    memset.dst, memset.value, memset.elementSize, memset.width, memset.height = d, 0, 4, 64, 1
    zero = ok(cu.cuGraphAddMemsetNode(graph, [first], 1, memset, 0))
    last = add_node(graph, [zero], kernel("add"), (1,), 64, 0, (Ptr(d), Ptr(one), 7.0))
    assert len(ok(cu.cuGraphGetNodes(graph, 8))[0]) >= 3
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphLaunch(executable, 0))
    assert value(d) == 7
    p = cu.CUDA_KERNEL_NODE_PARAMS()
    p.func, p.gridDimX, p.gridDimY, p.gridDimZ = kernel("add"), 1, 1, 1
    p.blockDimX, p.blockDimY, p.blockDimZ = 64, 1, 1
    p.kernelParams = params((Ptr(other), Ptr(one), 3.0))
    ok(cu.cuGraphLaunch(executable, 0))  # queued with the old parameters, run after the update
    ok(cu.cuGraphExecKernelNodeSetParams(executable, last, p))
    ok(cu.cuGraphLaunch(executable, 0))
    assert value(other) == 3 and value(d) == 0
    bigger = ok(cu.cuGraphCreate(0))
    add_node(bigger, [], kernel("add"), (1,), 64, 0, (Ptr(d), Ptr(one), 1.0))
    assert cu.cuGraphExecUpdate(executable, bigger)[0] == R.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
    cycle = ok(cu.cuGraphCreate(0))
    nodes = [ok(cu.cuGraphAddEmptyNode(cycle, [], 0)) for _ in range(2)]
    for a, b in ((0, 1), (1, 0)):
        ok(cu.cuGraphAddDependencies(cycle, [nodes[a]], [nodes[b]], None, 1))
    raises(R.CUDA_ERROR_INVALID_VALUE, lambda: ok(cu.cuGraphInstantiate(cycle, 0)))


def _edge(type_: int, from_port: int, to_port: int = 0) -> Any:
    edge = cu.CUgraphEdgeData()
    edge.type, edge.from_port, edge.to_port = type_, from_port, to_port
    return edge


def edges_have_rules() -> None:
    """cuGraphAddDependencies: nodes of this graph, once each, and what an edge's data may say."""
    graph, other = (ok(cu.cuGraphCreate(0)) for _ in range(2))

    def node(of: Any) -> Any:
        d = Ptr(upload(ONES))
        return add_node(of, [], kernel("add"), (1,), 64, 0, (d, d, 1.0))

    a, b, c, foreign = node(graph), node(graph), node(graph), node(other)
    empty = ok(cu.cuGraphAddEmptyNode(graph, [], 0))

    def link(before: Any, after: Any, *edges: Any) -> None:
        ok(cu.cuGraphAddDependencies(graph, [before], [after], list(edges) or None, 1))

    early = _edge(1, 1)
    for before, after, *edges in (
        (a, a),
        (a, foreign),
        (foreign, b),
        (a, empty, early),
        (empty, a, early),
        (a, b, _edge(1, 0)),
        (a, b, _edge(0, 1)),
        (a, b, _edge(1, 1, 1)),
        (a, b, _edge(1, 3)),
        (a, b, _edge(2, 1)),
    ):
        raises(R.CUDA_ERROR_INVALID_VALUE, link, before, after, *edges)
    link(a, b, early)
    raises(R.CUDA_ERROR_INVALID_VALUE, link, a, b)
    link(c, b)
    for twice in ([a, a], [foreign]):
        raises(R.CUDA_ERROR_INVALID_VALUE, lambda t=twice: ok(cu.cuGraphAddEmptyNode(graph, t, len(t))))
    executable = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphUpload(executable, 0))
    ok(cu.cuGraphDestroy(graph))
    for gone in (cu.cuGraphDestroy, lambda g: cu.cuGraphInstantiate(g, 0), lambda g: cu.cuGraphAddEmptyNode(g, [], 0)):
        raises(R.CUDA_ERROR_INVALID_VALUE, lambda f=gone: ok(f(graph)))
    ok(cu.cuGraphLaunch(executable, 0))  # lives without its graph
    ok(cu.cuStreamSynchronize(0))
    ok(cu.cuGraphExecDestroy(executable))
    for gone in (cu.cuGraphUpload, cu.cuGraphLaunch):
        raises(R.CUDA_ERROR_INVALID_HANDLE, lambda f=gone: ok(f(executable, 0)))


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


def a_forked_child_has_no_driver() -> None:
    child = os.fork()
    if not child:
        codes = (cu.cuInit(0)[0], cu.cuDeviceGet(0)[0], cu.cuMemGetInfo()[0], cu.cuCtxSetCurrent(0)[0])
        os._exit(0 if set(codes) == {R.CUDA_ERROR_NOT_INITIALIZED} else 1)
    assert os.waitpid(child, 0)[1] == 0
    ok(cu.cuMemGetInfo())


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
    another_architecture_is_refused,
    errors_are_sticky_and_name_the_line,
    capture_follows_events,
    graphs_by_node_are_updated_and_relaunched,
    edges_have_rules,
    flags_and_handles_are_checked,
    unloaded_modules_run_nothing,
    static_shared_memory_counts,
    a_released_context_is_gone,
    a_forked_child_has_no_driver,
    launch_attributes,
    tensor_maps_have_limits,
    tensor_maps_are_aligned,
    peer_access,
]


def main() -> None:
    context()
    for check in CHECKS:
        try:
            check()
            print(json.dumps({"check": check.__name__, "problem": ""}), flush=True)
        except Exception:
            print(json.dumps({"check": check.__name__, "problem": traceback.format_exc()}), flush=True)
            forget_error()


if __name__ == "__main__":
    main()
