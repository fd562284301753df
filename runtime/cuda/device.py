"""CUDA engines: `CudaDevice` runs plans as CUDA graphs, through the driver alone.

A step is a copy of its arrays to the device, a graph launch, a copy back, and one wait.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence

from llmc.runtime.artifact.artifact import Artifact
from llmc.runtime.cuda.buckets import decode_buckets, decode_sizes, prefill_buckets, prefill_sizes, smallest
from llmc.runtime.cuda.driver.driver import CudaError, call, driver
from llmc.runtime.cuda.graph.arguments import Arguments
from llmc.runtime.cuda.graph.early import EarlyStart
from llmc.runtime.cuda.graph.graphs import EntryGraphs
from llmc.runtime.cuda.graph.serial import SerialEntry
from llmc.runtime.cuda.memory.addresses import find_buffer
from llmc.runtime.cuda.memory.resident import Resident
from llmc.runtime.cuda.plan import Sizes, read_plan
from llmc.runtime.cuda.step.logits import LogitsCopy
from llmc.runtime.cuda.step.sampling_stage import SamplingStage
from llmc.runtime.device.protocol import DeviceMemory
from llmc.runtime.errors import DeviceRefused, ManifestInvalid, StepFailed
from llmc.runtime.kv.swap import BlockCopy, CopyKind
from llmc.runtime.step.arrays import StepBuffers
from llmc.runtime.step.limits import LoadOptions, asked_swap_memory, plan_step

PREFILL, DECODE = "prefill", "decode"


class CudaDevice:
    """The artifact's CUDA target on device 0.

    Raises EngineError subclasses, InvalidParameter. A kernel that faults ends the device: every later step fails.
    """

    def __init__(self, artifact: Artifact, options: LoadOptions) -> None:
        self._entries: dict[str, EntryGraphs | SerialEntry] = {}
        self._resident: Resident | None = None
        self._died_of: str | None = None
        self._process = os.getpid()  # CUDA's state is this process's: in a fork of it no call of the driver works
        self._under_way = False  # the device may still read or write the step's arrays
        self._launched = ""  # the last step, in words
        try:
            self._open(artifact, options)
        except CudaError as error:
            self.close()
            raise DeviceRefused(f"{artifact.folder}: {artifact.target.name} cannot be made ready: {error}") from error
        except BaseException:
            self.close()
            raise

    def _open(self, artifact: Artifact, options: LoadOptions) -> None:
        target = artifact.target
        self.limits = limits = plan_step(artifact.manifest, target, options)
        plans = {
            entry: read_plan(artifact.read_bytes(target.plan(entry)), f"{artifact.folder}: {target.plan(entry)}")
            for entry in (PREFILL, DECODE)
        }
        self._decode_buckets = decode_buckets(limits.max_seqs)
        self._prefill_buckets = prefill_buckets(limits.max_tokens)
        buckets = {
            PREFILL: [prefill_sizes(bucket, True, limits) for bucket in self._prefill_buckets],
            DECODE: [decode_sizes(bucket, limits) for bucket in self._decode_buckets],
        }
        sampling = SamplingStage(limits, len(artifact.manifest.tokens.eos))
        swap_memory = asked_swap_memory(options.swap_memory)
        self._resident = resident = Resident(artifact, plans, buckets, limits, options.kv_memory, sampling, swap_memory)
        self.swap_space = resident.host_blocks.space
        self.num_blocks = resident.num_blocks
        self._block_bytes = [group.block_bytes for group in target.kv.groups]
        self.memory = DeviceMemory(resident.weights_bytes, resident.kv_bytes, resident.arena_bytes)
        self._logits = {}
        early = EarlyStart(resident.context.programmatic)
        for entry, plan in plans.items():
            with resident.context.current():
                arguments = Arguments(plan, resident.addresses)
                arguments.check(buckets[entry][-1])
            assert resident.kernels is not None
            if options.serial:
                self._entries[entry] = SerialEntry(plan, resident.kernels, arguments)
            else:
                self._entries[entry] = EntryGraphs(plan, resident.kernels, arguments, early)
            logits, vocab = find_buffer(plan, plan.logits), artifact.manifest.model.vocab_size
            if logits.row_bytes < 4 * vocab:
                raise ManifestInvalid(
                    f"{artifact.folder}: {target.plan(entry)}: rows of logits have {logits.row_bytes} bytes, "
                    f"{vocab} values do not fit"
                )
            self._logits[entry] = LogitsCopy(logits, resident.addresses.buffer(logits), vocab)

    def prefill(self, step: StepBuffers) -> None:
        self.launch_prefill(step)
        self.wait(step)

    def decode(self, step: StepBuffers) -> None:
        self.launch_decode(step)
        self.wait(step)

    def launch_prefill(self, step: StepBuffers) -> None:
        bucket = smallest(self._prefill_buckets, step.num_tokens)
        self._launch(PREFILL, step, prefill_sizes(bucket, step.num_rows > 0, self.limits))

    def launch_decode(self, step: StepBuffers) -> None:
        self._launch(DECODE, step, decode_sizes(smallest(self._decode_buckets, step.num_seqs), self.limits))

    def wait(self, step: StepBuffers) -> None:
        with self._usable() as resident:
            resident.context.synchronize()
            self._under_way = False
            resident.outputs.read(step)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Queued on the stream of the steps; the next step's wait is theirs."""
        with self._usable() as resident:
            self._launched = f"copies of {len(copies)} KV blocks"
            for copy in copies:
                self._copy(resident, copy)

    def _copy(self, resident: Resident, copy: BlockCopy) -> None:
        cu, stream = driver(), resident.context.stream
        pool, size, host = resident.addresses.kv[copy.group], self._block_bytes[copy.group], resident.host_blocks
        target, source = pool + copy.target * size, pool + copy.source * size
        if copy.kind is CopyKind.OUT:
            call(cu.cuMemcpyDtoHAsync, host.address(copy.group, copy.target), source, size, stream)
        elif copy.kind is CopyKind.IN:
            call(cu.cuMemcpyHtoDAsync, target, host.address(copy.group, copy.source), size, stream)
        else:
            call(cu.cuMemcpyDtoDAsync, target, source, size, stream)

    def close(self) -> None:
        """Wait for what runs, then free everything in order; closing again changes nothing."""
        resident, self._resident = self._resident, None
        if resident is None or self._process != os.getpid():
            return
        with contextlib.suppress(CudaError), resident.context.current():
            with contextlib.suppress(CudaError):
                resident.context.synchronize()
            for runner in self._entries.values():
                runner.close()
        resident.close()

    @contextlib.contextmanager
    def _usable(self) -> Iterator[Resident]:
        """For calls of the driver, whose errors become StepFailed."""
        resident = self._resident
        if resident is None:
            raise StepFailed("the engine is closed")
        if self._process != os.getpid():
            raise StepFailed(
                f"the engine was loaded by process {self._process}, and a fork cannot use that one's GPU; load it in "
                "the process that uses it"
            )
        if self._died_of is not None:
            raise StepFailed(f"the device has failed and must be loaded anew, in a new process: {self._died_of}")
        try:
            with resident.context.current():
                yield resident
        except CudaError as error:
            text = f"{self._launched}: {error}; an engine loaded with serial=True names the kernel"
            raise self._failed(StepFailed(text)) from error
        except StepFailed as error:
            raise self._failed(error) from error.__cause__

    def _launch(self, entry: str, step: StepBuffers, sizes: Sizes) -> None:
        with self._usable() as resident:
            counts = f"{step.num_tokens} tokens, {step.num_seqs} sequences, {step.num_rows} rows"
            self._launched = f"{entry} of {counts}"
            context, stream = resident.context, resident.context.stream
            if self._under_way:  # an exception (Ctrl-C) tore the last step before its end
                context.synchronize()
            self._under_way = True
            resident.inputs.send(step, stream)
            self._entries[entry].run(sizes, stream)
            resident.outputs.fetch(step, stream)
            self._logits[entry].fetch(step, stream)

    def _failed(self, failure: StepFailed) -> StepFailed:
        """Kernels that fault leave a context in which nothing works any more; a refused call leaves it as it was."""
        assert self._resident is not None
        context = self._resident.context
        try:
            with context.current():
                context.synchronize()
            self._under_way = False
        except CudaError:
            self._died_of = str(failure)
        return failure
