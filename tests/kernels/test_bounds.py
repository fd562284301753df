"""No kernel reads or writes past its buffers: they end at a page that may not be touched."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from llmc.ir.formats import Scheme

from .conftest import Kernels
from .test_linear import FORMATS, Linear, pointer, random
from .test_sample import Ask, Sampling

LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE


def at_page_end(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """A copy whose last byte is followed by a page without access."""
    size = -(-array.nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, size + PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert LIBC.mprotect(ctypes.c_void_p(base + size), ctypes.c_size_t(PAGE), 0) == 0  # PROT_NONE
    copy = np.frombuffer(memory, np.uint8, array.nbytes, size - array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def survives(body: Callable[[], object]) -> bool:
    """Whether body ends without a fault, in a process of its own."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        try:
            body()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (33, 31), (70, 97), (64, 64)])
def test_linear(kernels: Kernels, fmt: Scheme, n: int, k: int) -> None:
    linear = Linear(kernels, fmt, n, k, random(1, n, k))
    panels = at_page_end(linear.panels)
    scales = None if linear.scales is None else at_page_end(linear.scales)
    bias, x = at_page_end(random(2, n)), random(3, 40, k)

    def run() -> None:
        for rows in (1, 2, 7, 17, 40):
            source, out = at_page_end(x[:rows]), at_page_end(np.zeros((rows, n), np.float32))
            operand = at_page_end(np.zeros(rows * linear.rows.row_bytes(k), np.uint8))
            kernels.lib.quantize(linear.format_id, pointer(source), rows, k, pointer(operand))
            kernels.lib.run_linear(
                *(linear.format_id, pointer(panels), pointer(scales), ctypes.c_int64(n), ctypes.c_int64(k)),
                *(pointer(operand), ctypes.c_int64(rows), pointer(bias), pointer(out), 1),
            )
        row = at_page_end(np.zeros(k, np.float32))
        kernels.lib.embed(linear.format_id, pointer(panels), pointer(scales), ctypes.c_int64(n - 1), k, pointer(row))

    assert survives(run)


@pytest.mark.parametrize("n", [1, 15, 17, 65, 100])
def test_rows(kernels: Kernels, n: int) -> None:
    def run() -> None:
        x, w, y = (at_page_end(random(i, n)) for i in range(3))
        eps = ctypes.c_float(1e-5)
        kernels.lib.row_rms_norm(pointer(x), pointer(w), eps, pointer(y), n)
        kernels.lib.row_layer_norm(pointer(x), pointer(w), pointer(w), eps, pointer(y), n)
        kernels.lib.row_softmax(pointer(x), pointer(y), n)
        kernels.lib.row_max(pointer(x), n)
        head = at_page_end(random(4, 2 * n))
        for interleaved in (0, 1):
            kernels.lib.row_rope(interleaved, pointer(head), pointer(head), 1, 2 * n, n, pointer(x), pointer(w))

    assert survives(run)


@pytest.mark.parametrize("valid", [1, 17, 100])
def test_sampling(kernels: Kernels, valid: int) -> None:
    def run() -> None:
        logits = at_page_end(random(5, 1, valid))
        for ask in (Ask(num_logprobs=20), Ask(top_p=0.5, min_p=0.1, repetition=2.0, output=[0, valid - 1])):
            token, logprob = at_page_end(np.zeros(1, np.int32)), at_page_end(np.zeros(1, np.float32))
            ids, logprobs = at_page_end(np.zeros(20, np.int32)), at_page_end(np.zeros(20, np.float32))
            kernels.lib.run_sample(
                *((Sampling * 1)(ask.struct()), pointer(logits), 1, ctypes.c_int64(valid), valid),
                *(pointer(token), pointer(logprob), pointer(ids), pointer(logprobs), 1),
            )

    assert survives(run)


def test_a_fault_is_seen() -> None:
    beyond = at_page_end(np.zeros(16, np.float32)).ctypes.data + 64
    assert not survives(lambda: ctypes.memset(beyond, 0, 1))
