"""CPU engines: `CpuDevice` runs model.so."""

import ctypes
import os
from collections.abc import Sequence
from itertools import accumulate
from weakref import WeakKeyDictionary

from llmc.runtime.artifact.artifact import Artifact
from llmc.runtime.cpu.library import CpuStep, LlmcConfig, LlmcKvPool, load_library
from llmc.runtime.cpu.memory import Pool, available_bytes
from llmc.runtime.cpu.threads import SharedThreads
from llmc.runtime.device.protocol import DeviceMemory
from llmc.runtime.errors import AbiMismatch, NotEnoughMemory, StepFailed
from llmc.runtime.kv.swap import BlockCopy, CopyKind
from llmc.runtime.step.arrays import StepBuffers, StepLimits

_LINE = 64  # bytes; pools are aligned to it


class CpuDevice:
    """model.so over the mapped weights and a KV pool of so many blocks for each group.

    Raises EngineError subclasses.
    """

    def __init__(
        self,
        artifact: Artifact,
        limits: StepLimits,
        num_blocks: Sequence[int],
        threads: int,
        shared: SharedThreads | None = None,
    ) -> None:
        self._engine: int | None = None
        self._steps: WeakKeyDictionary[StepBuffers, CpuStep] = WeakKeyDictionary()
        self.limits = limits
        self.num_blocks = tuple(num_blocks)
        self.swap_space = None
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
            pool=shared.of(self._library, threads) if shared is not None else None,
        )
        self.memory = DeviceMemory(
            weights_bytes=artifact.weights.data_bytes,
            kv_bytes=sum(sizes),
            arena_bytes=self._library.llmc_arena_bytes(ctypes.byref(config)),
        )
        check_memory(self.memory)
        self._pool = Pool(self.memory.kv_bytes)
        self._kv = [self._pool.address + offset for offset in accumulate(sizes, initial=0)]
        self._block_bytes = block_bytes
        pools = zip(self._kv, self.num_blocks, strict=False)
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

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._check_open()
        for copy in copies:
            assert copy.kind is CopyKind.WITHIN, "a CPU's blocks are in host memory already"
            pool, size = self._kv[copy.group], self._block_bytes[copy.group]
            ctypes.memmove(pool + copy.target * size, pool + copy.source * size, size)

    def close(self) -> None:
        if self._engine:
            if self._process == os.getpid():  # a fork has none of the threads that this would wait for
                self._library.llmc_destroy(self._engine)
            self._engine = None
            self._pool.close()

    def _check_open(self) -> None:
        if not self._engine:
            raise StepFailed("the engine is closed")
        if self._process != os.getpid():
            raise StepFailed(
                f"the engine was loaded by process {self._process}, and a fork has none of its threads; load it in "
                "the process that uses it"
            )

    def _run(self, entry: str, step: StepBuffers) -> None:
        self._check_open()
        if step not in self._steps:
            self._steps[step] = CpuStep(step)
        code = getattr(self._library, entry)(self._engine, self._steps[step].of(step))
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
