"""How long a card's report should take: python bench/gpu/budget.py [--target h200]. Predicted, nothing was measured.

The GPU's share comes from the roofline model (docs/roofline.md), all else from the assumptions below. Writes the table
of README.md.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [path for path in (str(HERE), str(HERE.parents[1] / "tests" / "cuda")) if path not in sys.path]

from end_to_end import FIRST_PROMPT, Workload  # noqa: E402  (the path is set above)
from parts import GRACE  # noqa: E402
from prepare import CONFIGS, MODELS, STEP_TOKENS  # noqa: E402
from run import MINUTES, SHARES  # noqa: E402

from llmc.codegen.cuda.target.gpus import GPUS, Gpu  # noqa: E402
from llmc.compiler.roofline.lowering import Lowering  # noqa: E402
from llmc.compiler.roofline.open_subject import open_subject  # noqa: E402
from llmc.compiler.roofline.predict import Total, predict  # noqa: E402
from llmc.compiler.targets.cuda import CudaBackend  # noqa: E402

BEGIN, END = "<!-- begin: python bench/gpu/budget.py -->", "<!-- end -->"


@dataclass(frozen=True)
class Assumed:
    """Of a machine with 16 cores. Seconds, or bytes per second."""

    process: float = 3.0
    """A part's start: Python, numpy, the driver's context."""
    host_case: float = 0.35
    """What float64 on the host takes for a small case."""
    large_case: float = 3.0
    """The same for a timed one."""
    limits: float = 8.0
    """Arrays of 1 GiB made and compared on the host, four times."""
    fill: float = 1.5e9
    """Weights written to memory and hashed by all cores."""
    load: float = 4.0e9
    """Weights hashed, copied to pinned memory by one core, and to the card, side by side."""
    slower: float = 2.0
    """Whatever the roofline predicts for a step takes this many times as long."""
    graph: float = 0.05
    """Building the graph of a bucket, through Python."""


ASSUMED = Assumed()


def steps(lowering: Lowering, gpu: Gpu, work: Workload) -> float:
    """Seconds of all steps of a model's part, as the roofline predicts them."""

    def seconds(total: Total) -> float:
        assert total.expected_s is not None
        return total.expected_s

    found = 0.0
    for batch in work.batches:
        (point,) = predict(lowering, CudaBackend(gpu), [batch], work.context, STEP_TOKENS).points
        found += seconds(point.ttft) + (1 + work.steps) * seconds(point.tpot)
    for length in (FIRST_PROMPT, *work.prompts):
        (point,) = predict(lowering, CudaBackend(gpu), [1], length, STEP_TOKENS).points
        found += (1 + work.repeats) * seconds(point.ttft)
    return found


def rows(gpu: Gpu, assumed: Assumed = ASSUMED) -> Iterator[tuple[str, float, str]]:
    """(part, seconds, why)."""
    from cases import TIMED, checked
    from primitives import CHECKS

    work, a = Workload(), assumed
    cases = len(checked(False))
    yield "limits", a.process + a.limits, "arrays of 1 GiB on the host"
    yield "primitives", a.process + 0.1 * len(CHECKS), f"{len(CHECKS)} checks, cubins prepared"
    yield "kernels", a.process + a.host_case * cases, f"{cases} cases against float64 on the host"
    yield "times", 2 * a.process + a.large_case * len(TIMED), f"{len(TIMED)} large cases, torch among the imports"
    models, weights = [], 0.0
    for name in MODELS:
        subject = open_subject(str(CONFIGS / name), None)
        lowering = subject.lowered(CudaBackend(gpu))
        size = predict(lowering, CudaBackend(gpu), [1], work.context, STEP_TOKENS).weight_bytes
        weights += size
        gpu_s = steps(lowering, gpu, work)
        graphs = (len(work.batches) + 5) * a.graph
        whole = a.process + size / a.load + a.slower * gpu_s + graphs
        why = f"load {size / a.load:.1f} s, {gpu_s:.1f} s of steps by the roofline, taken {a.slower:.0f} times"
        models.append((f"model {name}", whole, why))
    yield "engines (beside primitives and kernels)", weights / a.fill, f"{weights / 1e9:.1f} GB of weights"
    yield from models


def table(gpu: Gpu) -> Iterator[str]:
    """Markdown."""
    found = list(rows(gpu))
    times = {name: seconds for name, seconds, _ in found}
    filling = next(name for name in times if name.startswith("engines"))
    waiting = max(0.0, times[filling] - times["primitives"] - times["kernels"])
    whole = sum(times.values()) - times[filling] + waiting
    yield ""
    yield f"Predicted for {gpu.product}, of {60 * MINUTES:.0f} s:"
    yield ""
    yield "| part | seconds | at most | from |"
    yield "|---|--:|--:|---|"
    for name, seconds, why in found:
        most = SHARES.get(name)
        yield f"| {name} | {seconds:.0f} | {f'{most:.0f}' if most else 'what is left'} | {why} |"
    yield f"| **all** | **{whole:.0f}** | {60 * MINUTES:.0f} | |"
    yield ""
    a = ASSUMED
    text = (
        f"Assumed of a machine with 16 cores: {a.process:.0f} s for a part's process to start; {a.host_case:.2f} s for "
        f"a case's float64 on the host, {a.large_case:.0f} s for a timed one's; {a.limits:.0f} s for the arrays of the "
        f"limits; weights filled at {a.fill / 1e9:.1f} GB/s and loaded at {a.load / 1e9:.0f} GB/s; {a.graph:.2f} s for "
        f"a graph; steps {a.slower:.0f} times as long as the roofline model says. Whatever is under way when a part's "
        f"time is over is ended {GRACE:.0f} s later."
    )
    yield from textwrap.wrap(text, 120)
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="h200", choices=GPUS)
    args = parser.parse_args()
    page = HERE / "README.md"
    lines = list(table(GPUS[args.target]))
    print("\n".join(lines))
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text("\n".join([before + BEGIN, *lines, END]) + after)


if __name__ == "__main__":
    main()
