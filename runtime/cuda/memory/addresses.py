"""Where everything that a plan names lies in device memory: fixed from load to close."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llmc.runtime.artifact.plan import Buffer
from llmc.runtime.cuda.plan import Argument, Plan, Sizes
from llmc.runtime.errors import ManifestInvalid
from llmc.runtime.step.arrays import StepLimits

ALIGNMENT = 256  # of every region; cuMemAlloc's own


@dataclass(frozen=True)
class ArenaLayout:
    """The arena: a region of rows of tokens, then one of sampled rows, each for a full step."""

    token_bytes: int
    sampled_bytes: int

    @property
    def num_bytes(self) -> int:
        return self.token_bytes + self.sampled_bytes


def lay_out_arena(plans: Iterable[Plan], limits: StepLimits) -> ArenaLayout:
    """Entries take turns in the same arena."""
    plans = tuple(plans)
    per_token = max(plan.arena.bytes_per_token for plan in plans)
    per_row = max(plan.arena.bytes_per_row for plan in plans)
    return ArenaLayout(round_up(limits.max_tokens * per_token), round_up(limits.max_rows * per_row))


def scratch_bytes(plans: Iterable[tuple[Plan, Iterable[Sizes]]]) -> dict[str, int]:
    """Bytes of each scratch: what the largest variant asks for that runs in any of the plans' buckets."""
    most: dict[str, int] = {}
    for plan, buckets in plans:
        for sizes in buckets:
            for launch in plan.launches:
                for name, extent in launch.variant(sizes.value(launch.rows)).scratch.items():
                    most[name] = max(most.get(name, 0), extent.at(sizes))
    return most


def round_up(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Addresses:
    """Device addresses by what a plan calls them; `kv`: of every group's pool."""

    arena: int
    layout: ArenaLayout
    limits: StepLimits
    weights: Mapping[str, int]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    scratch: Mapping[str, int]
    kv: tuple[int, ...]

    def buffer(self, buffer: Buffer) -> int:
        if buffer.rows == "T":
            return self.arena + self.limits.max_tokens * buffer.offset
        return self.arena + self.layout.token_bytes + self.limits.max_rows * buffer.offset

    def rows(self, buffer: Buffer) -> int:
        """Rows that there is memory for."""
        return self.limits.max_tokens if buffer.rows == "T" else self.limits.max_rows

    def of(self, plan: Plan, argument: Argument) -> int:
        """The address of a pointer argument. Raises ManifestInvalid for a name that nothing has."""
        name = argument.name or ""
        if argument.kind == "buffer":
            return self.buffer(find_buffer(plan, name))
        if argument.kind == "kv":
            known: Mapping[str, int] = {str(group): pool for group, pool in enumerate(self.kv)}
        else:
            known = {
                "weight": self.weights,
                "input": self.inputs,
                "output": self.outputs,
                "scratch": self.scratch,
            }[argument.kind]
        if name not in known:
            raise ManifestInvalid(f"the {plan.entry} plan has an argument {argument.kind} {name!r}, which nothing is")
        return known[name]


def find_buffer(plan: Plan, name: str) -> Buffer:
    return next(buffer for buffer in plan.buffers if buffer.name == name)
