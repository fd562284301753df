"""What graphs and single launches have in common: a launch's shape in a bucket, and how a refusal is told."""

from dataclasses import dataclass

from llmc.runtime.cuda.driver.driver import CudaError
from llmc.runtime.cuda.plan import Launch, Plan, Sizes, Variant
from llmc.runtime.errors import StepFailed


@dataclass(frozen=True)
class Shaped:
    """A launch in a bucket. An empty grid has nothing to do: no row is sampled."""

    launch: Launch
    variant: Variant
    grid: tuple[int, int, int]

    @property
    def is_empty(self) -> bool:
        return 0 in self.grid


def shape(launch: Launch, sizes: Sizes) -> Shaped:
    variant = launch.variant(sizes.value(launch.rows))
    x, y, z = ([extent.at(sizes) for extent in variant.grid] + [1, 1])[:3]
    return Shaped(launch, variant, (x, y, z))


def failure(plan: Plan, sizes: Sizes, shaped: Shaped, error: CudaError) -> StepFailed:
    """Names the kernel and its module."""
    launch, variant = shaped.launch, shaped.variant
    return StepFailed(
        f"{plan.entry} for {sizes.tokens} tokens: {variant.kernel} ({launch.op} {launch.loc}; "
        f"grid {' x '.join(map(str, shaped.grid))}, block {variant.block}, {variant.shared_bytes} bytes of shared "
        f"memory): {error}"
    )
