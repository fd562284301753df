"""Where steps run. The engine talks to the `Device` protocol; `CpuDevice` runs model.so, `cuda.device` cubins."""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from llmc.runtime.artifact.artifact import Artifact
from llmc.runtime.artifact.manifest import CUDA
from llmc.runtime.cpu.library import LlmcConfig, LlmcKvPool, load_library
from llmc.runtime.cpu.memory import Pool, available_bytes
from llmc.runtime.errors import AbiMismatch, NotEnoughMemory, StepFailed
from llmc.runtime.step.arrays import StepBuffers, StepLimits
from llmc.runtime.step.limits import LoadOptions, plan_limits

_LINE = 64  # bytes; pools are aligned to it


def open_device(artifact: Artifact, options: LoadOptions) -> "Device":
    """The device of the artifact's target, ready for steps. Raises EngineError subclasses, InvalidParameter."""
    if artifact.target.kind == CUDA:
        from llmc.runtime.cuda.device import CudaDevice

        return CudaDevice(artifact, options)
    plan = plan_limits(artifact.manifest, artifact.target, options)
    return CpuDevice(artifact, plan.step, plan.num_blocks, plan.threads)


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes a device holds."""

    weights_bytes: int
    kv_bytes: int
    arena_bytes: int


class Device(Protocol):
    """Executes steps and owns the KV pools, the scratch memory and the sampler."""

    @property
    def limits(self) -> StepLimits: ...

    @property
    def num_blocks(self) -> tuple[int, ...]:
        """Of every KV group's pool."""

    @property
    def memory(self) -> DeviceMemory: ...

    def prefill(self, step: StepBuffers) -> None:
        """Run a step of any mix of chunks and single tokens. Raises StepFailed."""

    def decode(self, step: StepBuffers) -> None:
        """Run a step in which every sequence has exactly one token, which is sampled. Raises StepFailed."""

    def close(self) -> None:
        """Give back memory and threads; closing again changes nothing."""


class CpuDevice:
    """model.so over the mapped weights and a KV pool of so many blocks for each group.

    Raises EngineError subclasses.
    """

    def __init__(self, artifact: Artifact, limits: StepLimits, num_blocks: Sequence[int], threads: int) -> None:
        self._engine: int | None = None
        self.limits = limits
        self.num_blocks = tuple(num_blocks)
        manifest, kv = artifact.manifest, artifact.target.kv
        library_path = artifact.path(artifact.target.library)
        with artifact.open_checked(artifact.target.library) as file:
            self._library = load_library(file)
        abi = self._library.llmc_abi_version()
        if abi != manifest.abi:
            raise AbiMismatch(f"{library_path}: speaks step ABI {abi}, the manifest says {manifest.abi}")
        said = [group.block_bytes for group in kv.groups]
        block_bytes = [self._library.llmc_kv_block_bytes(g) for g in range(self._library.llmc_kv_groups())]
        if block_bytes != said:
            raise AbiMismatch(f"{library_path}: KV blocks of {block_bytes} bytes by group, the manifest says {said}")
        sizes = [-(-n * size // _LINE) * _LINE for n, size in zip(self.num_blocks, block_bytes, strict=True)]
        config = LlmcConfig(
            weights=artifact.weights.address,
            max_tokens=limits.max_tokens,
            max_seqs=limits.max_seqs,
            max_rows=limits.max_rows,
            max_seq_len=limits.max_seq_len,
            num_threads=threads,
        )
        self.memory = DeviceMemory(
            weights_bytes=artifact.weights.data_bytes,
            kv_bytes=sum(sizes),
            arena_bytes=self._library.llmc_arena_bytes(ctypes.byref(config)),
        )
        check_memory(self.memory)
        self._pool = Pool(self.memory.kv_bytes)
        starts = [self._pool.address + offset for offset in accumulate(sizes, initial=0)]
        pools = zip(starts, self.num_blocks, strict=False)
        config.kv = (LlmcKvPool * len(sizes))(*(LlmcKvPool(base, count) for base, count in pools))
        self._process = os.getpid()
        self._engine = self._library.llmc_create(ctypes.byref(config))
        if not self._engine:
            self._pool.close()
            raise NotEnoughMemory(
                f"{artifact.folder}: could not start: {self.memory.arena_bytes} bytes of scratch, {threads} threads "
                "or (for an AMX target) the kernel's permission for tile registers were refused"
            )

    def prefill(self, step: StepBuffers) -> None:
        self._run("llmc_prefill", step)

    def decode(self, step: StepBuffers) -> None:
        self._run("llmc_decode", step)

    def close(self) -> None:
        if self._engine:
            if self._process == os.getpid():  # a fork has none of the threads that this would wait for
                self._library.llmc_destroy(self._engine)
            self._engine = None
            self._pool.close()

    def _run(self, entry: str, step: StepBuffers) -> None:
        if not self._engine:
            raise StepFailed("the engine is closed")
        if self._process != os.getpid():
            raise StepFailed(
                f"the engine was loaded by process {self._process}, and a fork has none of its threads; load it in "
                "the process that uses it"
            )
        code = getattr(self._library, entry)(self._engine, ctypes.byref(step.struct))
        if code != 0:
            raise StepFailed(
                f"{entry} returned {code} for a step of {step.num_tokens} tokens, {step.num_seqs} sequences, "
                f"{step.num_rows} rows: a fault of the engine, not of the request"
            )


def check_memory(memory: DeviceMemory) -> None:
    """Raises NotEnoughMemory, with the figures, if KV pool and scratch exceed what this machine has free."""
    wanted, available = memory.kv_bytes + memory.arena_bytes, available_bytes()
    if wanted > available:
        raise NotEnoughMemory(
            f"KV pool of {memory.kv_bytes} bytes and scratch of {memory.arena_bytes} need {wanted} bytes, "
            f"{available} are available; lower kv_memory, max_batch or max_seq_len"
        )
