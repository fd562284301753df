"""What a kernel takes: one vocabulary for all kernels.

Kernels' parameters declare it; Scope (plan/launches.py) makes of it what a plan passes for a node; tests and benchmarks
that launch a kernel alone look up by it what they pass.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from llmc.runtime.cuda.plan import Box, Extent


@dataclass(frozen=True)
class Input:
    """The address of an input of the node, by its number: a buffer, an array of the step, or a weight."""

    index: int


@dataclass(frozen=True)
class Output:
    """The address of an output of the node."""

    index: int = 0


@dataclass(frozen=True)
class StepArray:
    """An array of every step, by its name in plans: `counts`, `positions`, `sampling`."""

    name: str


@dataclass(frozen=True)
class Result:
    """Where the runtime reads what was sampled, by its name in plans: `tokens`, `logprob`."""

    name: str


@dataclass(frozen=True)
class Scratch:
    """Memory that launches share and that none needs once it has ended. `zeroed`: zero at load, and every launch leaves
    it zero."""

    name: str
    zeroed: bool = False


class Part(enum.Enum):
    """What a kernel is told of a slot of the KV cache."""

    POOL = "pool"  # unsigned char*: the first block of the pool that the slot lies in
    BLOCK_BYTES = "block_bytes"  # long long: from block to block of that pool
    OFFSET = "offset"  # long long: of the slot inside a block
    TABLES = "tables"  # const int*: [seqs, counts->table_stride] blocks of that pool


@dataclass(frozen=True)
class Slot:
    """Of the node's slots (codegen/kv_groups.py: slots_of), the one with this number."""

    part: Part
    index: int = 0


@dataclass(frozen=True)
class Whole:
    """An int that follows from the sizes of the bucket."""

    extent: Extent


@dataclass(frozen=True)
class Number:
    """A float that the op itself decides, so that layers with other numbers share the kernel."""

    name: str


Operand = Input | Output | StepArray | Result | Scratch | Slot | Whole | Number
COUNTS = StepArray("counts")


@dataclass(frozen=True)
class KernelArgument:
    """One parameter of a kernel: in C++, what is passed for it, and what lies there, for readers. `box`: what is passed
    is a tensor map, by value, of the matrix at the operand's address."""

    name: str
    cpp_type: str
    operand: Operand
    content: str = ""
    box: Box | None = None

    @property
    def declared(self) -> str:
        return f"{self.cpp_type} {self.name}"

    @property
    def contract(self) -> str:
        """As a kernel's header says it."""
        words = f"{self.name} {self.content}".rstrip()
        return f"map of {words}" if self.box else words


def counts(content: str = "") -> KernelArgument:
    """The sizes of the step (templates/cuda/step.cuh), which every kernel takes."""
    return KernelArgument("counts", "const Counts*", COUNTS, content)
