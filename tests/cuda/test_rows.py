"""Generated kernels of row-wise nodes against the interpreter, in three schedules, under the race detector."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Lab
from rows_bodies import Body, bodies
from rows_lab import compare, launch, make_case

from llmc.compiler.ir.ops.kernel import Scheme
from llmc.emulator.session import THREE_SCHEDULES
from tests.models import captured, row_ops
from tests.models.captured import EDGES

MODELS = {
    "llama": captured.llama,
    "interleaved": lambda: captured.llama(2, True, 12),
    "gpt2": captured.gpt2,
    "gemma": captured.gemma,
    "twin": captured.twin,
    "crossing": row_ops.crossing,
}
_FOUND = [(name, body) for name, model in MODELS.items() for body in bodies(model())]


def distinct(found: list[tuple[str, Body]]) -> list[tuple[str, Body]]:
    """Bodies whose kernels differ: layers repeat themselves."""
    kernels = {repr(make_case(body.graph).params): (name, body) for name, body in reversed(found)}
    return list(reversed(kernels.values()))


@pytest.mark.parametrize(("name", "body"), distinct(_FOUND), ids=lambda x: x if isinstance(x, str) else x.where)
def test_bodies_of_models(lab: Lab, name: str, body: Body) -> None:
    """Blocks beyond the rows of the step are in the launch, and change nothing."""
    case = make_case(body.graph, given=body.weights)
    for schedule in THREE_SCHEDULES:
        compare(case, launch(lab, case, schedule, bucket=case.num_rows + 3))


def test_half_precision_of_the_other_kind(lab: Lab) -> None:
    for model in (captured.llama, captured.gemma):
        for body in bodies(model(1), Scheme.F16):
            case = make_case(body.graph, given=body.weights)
            compare(case, launch(lab, case, THREE_SCHEDULES[2]))


@pytest.mark.parametrize("number", range(len(row_ops.sections())))
def test_every_op(lab: Lab, number: int) -> None:
    """Edge values, widths with tails, every layout a row can have."""
    ids = (np.arange(len(EDGES) + 3) % len(EDGES)).astype(np.int32)
    for body in bodies(row_ops.sections()[number].finish()):
        places = {
            v: ids if v.name == "ids" else np.arange(len(ids)) for v in body.graph.inputs if v.name in STEP_INPUTS
        }
        case = make_case(body.graph, given=body.weights | places, tokens=len(ids))
        compare(case, launch(lab, case, THREE_SCHEDULES[number % 3], bucket=len(ids) + 2))


STEP_INPUTS = ("ids", "positions")
