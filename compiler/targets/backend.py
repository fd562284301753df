"""What the rest of the compiler asks of a target, whatever it is: a CPU (targets/cpu.py) or a GPU (targets/cuda.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llmc.codegen.cpu.measured_limits import MeasuredLimits
from llmc.codegen.package import TargetPart
from llmc.codegen.roofline import Estimate, Machine
from llmc.codegen.weights import PlacedWeight
from llmc.codegen.work import Step, Storage, Work
from llmc.compiler.progress import Progress
from llmc.ir.formats import Scheme, WeightLayout
from llmc.ir.graph import Graph, Node
from llmc.ir.ops.constant import WeightExpr
from llmc.ir.ops.kernel import PackedLinear, Sample
from llmc.ir.types import DType
from llmc.runtime.artifact.manifest import Limits

Estimator = Callable[[Node, Work, Step], Estimate | None]
"""Expected time of a node of one graph; None where the target, or its kernels, lack the node's arithmetic."""


@dataclass(frozen=True)
class Lowered:
    """What a target generates code from: the final graphs of all entries, and where their weights lie."""

    model: str
    entries: Sequence[Graph]
    weights: Mapping[WeightExpr, PlacedWeight]
    limits: Limits

    @property
    def num_valid_tokens(self) -> int:
        (sample,) = (n.op for n in self.entries[0].nodes if isinstance(n.op, Sample))
        return sample.num_valid_tokens

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """Of its linears, in the order of their first."""
        nodes = [n for g in self.entries for n in g.nodes]
        return tuple(dict.fromkeys(n.op.scheme for n in nodes if isinstance(n.op, PackedLinear)))

    @property
    def placed(self) -> list[PlacedWeight]:
        return list(self.weights.values())


class Builder(Protocol):
    """Makes a target's part of an engine."""

    @property
    def toolchain(self) -> str:
        """What compiles its kernels, for the manifest."""

    def part(self, lowered: Lowered, progress: Progress) -> tuple[TargetPart, dict[str, Any]]:
        """Its part of the engine, and of the report. `progress` is told when kernels are compiled. Raises IRError."""


class Backend(Protocol):
    """A target: what its kernels read, how they are made, and how fast they can be."""

    @property
    def name(self) -> str:
        """As in `--target`."""

    @property
    def kind(self) -> str:
        """Which of the runtime's devices runs it: CPU or CUDA of runtime/artifact/manifest.py."""

    @property
    def product(self) -> str:
        """The machine, for people: a GPU's name, a CPU's instruction sets."""

    @property
    def layout(self) -> WeightLayout:
        """How its kernels read the matrices of linears."""

    @property
    def kv_dtypes(self) -> frozenset[DType]:
        """What its kernels keep a KV cache in."""

    @property
    def storage(self) -> Storage:
        """Bytes of values in its memory."""

    @property
    def memory_bytes(self) -> int | None:
        """Of the whole machine; None where a target says nothing of it."""

    @property
    def usable_bytes(self) -> int | None:
        """What of it an engine can have."""

    def is_measured_by(self, limits: MeasuredLimits) -> bool:
        """Whether limits are of this target."""

    def machine(self, limits: MeasuredLimits | None) -> Machine | None:
        """What it does at most, by its data sheet or by limits measured on it; None where neither is known."""

    def estimator(self, graph: Graph) -> Estimator | None:
        """The model of its kernels' time; None where there is none beyond their floors."""

    def refuses(self, scheme: Scheme) -> str | None:
        """Why none of its kernels multiplies in a scheme; None where one does."""

    def builder(self, scheme: Scheme) -> Builder:
        """Raises ToolchainError or IRError where kernels of the scheme cannot be made here."""
