"""Thin helpers over cuda-python for the scripts that run on the emulated driver (or on a GPU: nothing
here knows)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver as cu


class CallFailed(RuntimeError):
    def __init__(self, result: Any) -> None:
        self.code = result
        super().__init__(f"{result.name}: {cu.cuGetErrorString(result)[1].decode()}")


def ok(result: tuple[Any, ...]) -> Any:
    if result[0] != cu.CUresult.CUDA_SUCCESS:
        raise CallFailed(result[0])
    return None if len(result) == 1 else result[1] if len(result) == 2 else result[1:]


def context(device: int = 0) -> Any:
    ok(cu.cuInit(0))
    ctx = ok(cu.cuDevicePrimaryCtxRetain(ok(cu.cuDeviceGet(device))))
    ok(cu.cuCtxSetCurrent(ctx))
    return ctx


def load(folder: Path, name: str, kernel: str | None = None, smem: int = 0) -> Any:
    """A function of the cubin folder/name.cubin, opted in to `smem` bytes."""
    module = ok(cu.cuModuleLoadData((folder / f"{name}.cubin").read_bytes()))
    function = ok(cu.cuModuleGetFunction(module, (kernel or name).encode()))
    if smem > 48 << 10:
        ok(
            cu.cuFuncSetAttribute(
                function, cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem
            )
        )
    return function


def alloc(nbytes: int) -> int:
    return int(ok(cu.cuMemAlloc(nbytes)))


def upload(values: np.ndarray) -> int:
    values = np.ascontiguousarray(values)
    pointer = alloc(values.nbytes)
    ok(cu.cuMemcpyHtoD(pointer, values.ctypes.data, values.nbytes))
    return pointer


def download(pointer: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    out = np.empty(shape, dtype)
    ok(cu.cuMemcpyDtoH(out.ctypes.data, pointer, out.nbytes))
    return out


class Ptr(int):
    """A device address among the arguments of a launch."""


class Long(int):
    """An i64 among the arguments of a launch."""


def params(args: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """cuda-python's (values, types) of a launch: Ptr, Long (i64), int (i32), float (f32), TensorMap."""
    kinds: list[Any] = []
    for a in args:
        kinds.append(
            ctypes.c_void_p
            if isinstance(a, Ptr)
            else ctypes.c_longlong
            if isinstance(a, Long)
            else ctypes.c_float
            if isinstance(a, float)
            else ctypes.c_int
            if isinstance(a, int)
            else None
        )
    return tuple(int(a) if isinstance(a, (Ptr, Long)) else a for a in args), tuple(kinds)


def launch(function: Any, grid: Sequence[int], block: int, smem: int, args: Sequence[Any], stream: Any = 0) -> None:
    g = [*grid, 1, 1][:3]
    ok(cu.cuLaunchKernel(function, *g, block, 1, 1, smem, stream, params(args), 0))


def add_node(
    graph: Any,
    after: Sequence[Any],
    function: Any,
    grid: Sequence[int],
    block: int,
    smem: int,
    args: Sequence[Any],
) -> Any:
    p = cu.CUDA_KERNEL_NODE_PARAMS()
    p.func = function
    p.gridDimX, p.gridDimY, p.gridDimZ = [*grid, 1, 1][:3]
    p.blockDimX, p.blockDimY, p.blockDimZ = block, 1, 1
    p.sharedMemBytes = smem
    p.kernelParams = params(args)
    return ok(cu.cuGraphAddKernelNode(graph, list(after), len(after), p))
