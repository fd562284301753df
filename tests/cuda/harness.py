"""Runs each kernel on the emulator for a shape and compares it with float64. Used by the tests and by mutate.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import attention_cases
import linear_cases
import numpy as np
import rows_lab
from ml_dtypes import bfloat16

from llmc.codegen.cuda.attention.params import CombineAttentionParams, DecodeAttentionParams, PrefillAttentionParams
from llmc.codegen.cuda.kernel import KernelParams, render
from llmc.codegen.cuda.linear.params import LinearMmaParams, LinearWgmmaParams
from llmc.codegen.cuda.rows.kernel import RowsParams
from llmc.codegen.cuda.sample.params import SampleParams
from llmc.codegen.cuda.target.nvrtc import TEMPLATES
from llmc.emulator.build import HostCompiler, build_twin
from llmc.emulator.session import Argument, DeviceArray, Emulator, Kernel, Schedule

SYMBOL = "kernel"
# Rewrites n two-byte words of p with themselves.
TOUCH = """#include "device.cuh"
LLMC_KERNEL(32, 1) touch(unsigned short* p, int n, int zero) {
  grid_wait();
  for (int i = threadIdx.x; i < n; i += 32) p[i] ^= zero;
}
LLMC_EXPORT(touch)
"""

Shape = Mapping[str, int | str | tuple[int, ...]]


@dataclass
class Lab:
    """An emulator with the twins of kernels. Mutants override `headers`, the folder of .cuh files, or `source`, a
    kernel's own text."""

    checked: bool = True
    compiler: HostCompiler = field(default_factory=HostCompiler.default)
    headers: Path = TEMPLATES
    source: Callable[[KernelParams], str] = lambda params: render(params, SYMBOL)
    emulator: Emulator = field(default_factory=Emulator)
    _kernels: dict[tuple[str, str, bool, str], Kernel] = field(default_factory=dict)
    _arrays: list[DeviceArray] = field(default_factory=list)
    _inputs: list[DeviceArray] = field(default_factory=list)

    def launch(
        self,
        params: KernelParams,
        grid: tuple[int, ...],
        *args: Argument,
        suffix: str = "",
        block: int = 0,
        smem_bytes: int | None = None,
    ) -> None:
        """Launches on top of a kernel that rewrites every input, as its programmatic dependent: what the
        kernel
        reads before its grid_wait is a race."""
        touch = self._touch()
        for i, a in enumerate(self._inputs):  # a chain: the kernel is a dependent of each of them
            touch((1,), 32, 0, a, a.nbytes // 2, 0, programmatic=i > 0, wait=False)
        smem = params.smem_bytes if smem_bytes is None else smem_bytes
        self.kernel(params, suffix)(grid, block or params.threads, smem, *args, programmatic=True)

    def _touch(self) -> Kernel:
        key = ("touch", "", self.checked, self.compiler.name)
        if key not in self._kernels:
            twin = build_twin(TOUCH, [TEMPLATES], checked=self.checked, name="touch.cu", compiler=self.compiler)
            self._kernels[key] = self.emulator.kernel(twin, "touch")
        return self._kernels[key]

    def kernel(self, params: KernelParams, suffix: str = "") -> Kernel:
        key = (repr(params), suffix, self.checked, str(self.headers) + self.compiler.name)
        if key not in self._kernels:
            name = f"{params.template}.cu"
            twin = build_twin(
                self.source(params),
                [self.headers],
                checked=self.checked,
                name=name,
                compiler=self.compiler,
            )
            self._kernels[key] = self.emulator.kernel(twin, SYMBOL + suffix)
        return self._kernels[key]

    def array(self, values: np.ndarray) -> DeviceArray:
        self._arrays.append(self.emulator.array(values))
        self._inputs.append(self._arrays[-1])
        return self._arrays[-1]

    def constant(self, values: np.ndarray) -> DeviceArray:
        """An array that no kernel writes (weights): it may be read before grid_wait."""
        self._arrays.append(self.emulator.array(values))
        return self._arrays[-1]

    def empty(self, shape: tuple[int, ...], dtype: type = bfloat16) -> DeviceArray:
        self._arrays.append(self.emulator.empty(shape, dtype))
        return self._arrays[-1]

    @contextmanager
    def case(self, schedule: Schedule) -> Iterator[None]:
        """Launches under a schedule; afterwards every array of theirs is gone."""
        self.emulator.set_checked(self.checked)
        self.emulator.set_schedule(schedule)
        try:
            yield
        finally:
            self.emulator.reset()
            self.release()

    def release(self) -> None:
        """Frees every array of the case."""
        for a in self._arrays:
            a.free()
        self._arrays.clear()
        self._inputs.clear()

    def run(self, params: KernelParams, shape: Shape, schedule: Schedule, seed: int = 0) -> None:
        """One case: raises Wrong, or CudaError with the emulator's report."""
        with self.case(schedule):
            RUNNERS[type(params)](self, params, shape, np.random.default_rng(seed))


def _sample(lab: Lab, p: SampleParams, shape: Shape, rng: np.random.Generator) -> None:
    import sample_runner  # which imports this module

    sample_runner.run(lab, p, shape, rng)


RUNNERS: dict[type, Callable[..., None]] = {
    RowsParams: rows_lab.run_example,
    PrefillAttentionParams: attention_cases.run_prefill,
    DecodeAttentionParams: attention_cases.run_decode,
    CombineAttentionParams: attention_cases.run_combine,
    LinearMmaParams: linear_cases.run,
    LinearWgmmaParams: linear_cases.run,
    SampleParams: _sample,
}
