"""Launch plans: dependencies are dataflow, and a sync stands between any two launches that touch the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from llmc.codegen.cpu.model import Model, render
from llmc.codegen.memory import RowKind
from llmc.codegen.plan import Launch, Plan
from llmc.codegen.weights import place_weights
from llmc.ir.formats import SCHEMES, Scheme
from llmc.ir.graph import Graph
from llmc.ir.ops.constant import Weight
from llmc.passes.pipeline import default_pipeline, run_pipeline
from llmc.passes.rewrite import RuleLog
from llmc.runtime.artifact.plan import Buffer
from tests.models.captured import gemma, gpt2, llama, twin
from tests.models.random_layers import forest

GRAPHS: dict[str, Callable[[], Graph]] = {
    "llama": llama,
    "gpt2": gpt2,
    "gemma": gemma,
    "twin": twin,
    **{f"forest{seed}": partial(forest, seed, 6) for seed in range(4)},
}


def rendered(graph: Graph, scheme: Scheme) -> Model:
    entries = run_pipeline(graph, default_pipeline(scheme, 80), RuleLog(), lambda *_: None)
    placed = place_weights([n.op.expr for g in entries for n in g.nodes if isinstance(n.op, Weight)])
    return render("m", "cpu", entries, {w.expr: w for w in placed}, 80)


@pytest.fixture(
    scope="module", params=[(g, s) for g in GRAPHS for s in SCHEMES if s.cpu], ids=lambda p: f"{p[0]}-{p[1].name}"
)
def model(request: pytest.FixtureRequest) -> Model:
    name, scheme = request.param
    return rendered(GRAPHS[name](), scheme)


def overlap(a: Buffer, b: Buffer) -> bool:
    """Do two buffers share bytes, for any number of rows? Offsets and sizes are per row, so they scale together."""
    return a.rows == b.rows and a.offset < b.offset + b.row_bytes and b.offset < a.offset + a.row_bytes


def hazard(first: Launch, second: Launch, buffers: dict[str, Buffer]) -> str | None:
    """Why `second` may not run beside `first`."""
    if first.op == second.op == "paged_attention":
        return "both use the attention scratch"
    kinds = (
        ("read after write", first.writes, second.reads),
        ("write after read", first.reads, second.writes),
        ("write after write", first.writes, second.writes),
    )
    for kind, ours, theirs in kinds:
        for a in ours:
            for b in theirs:
                cache = a not in buffers and b not in buffers and not {a, b} & {"ids", "positions", "seqs", "rows"}
                if cache or (a in buffers and b in buffers and overlap(buffers[a], buffers[b])):
                    return f"{kind} of {a}, {b}"
    return None


def races(plan: Plan) -> list[str]:
    buffers = {b.name: b for b in plan.buffers}
    found = []
    for j, second in enumerate(plan.launches):
        for i in range(j - 1, -1, -1):
            if any(plan.launches[k].sync for k in range(i + 1, j + 1)):
                break
            if why := hazard(plan.launches[i], second, buffers):
                found.append(f"{plan.entry}: launches {i} and {j}: {why}")
    return found


def test_no_two_launches_race(model: Model) -> None:
    assert [race for plan in model.plans.values() for race in races(plan)] == []


def test_most_launches_that_need_no_sync_have_none(model: Model) -> None:
    """A sync that stands where nothing conflicts is time lost: each has a reason among the launches since the last."""
    for plan in model.plans.values():
        buffers = {b.name: b for b in plan.buffers}
        since: list[Launch] = []
        for launch in plan.launches:
            if launch.sync:
                # buffers are placed by lines, so the plan may see a conflict in the padding behind a row
                wide = {
                    n: Buffer(b.name, b.type, b.rows, -(-b.row_bytes // 64) * 64, b.offset) for n, b in buffers.items()
                }
                assert any(hazard(other, launch, wide) for other in since)
                since = []
            since.append(launch)


def test_launches_follow_those_they_need(model: Model) -> None:
    for plan in model.plans.values():
        writer = {name: i for i, launch in enumerate(plan.launches) for name in launch.writes}
        for i, launch in enumerate(plan.launches):
            assert launch.after == tuple(sorted({writer[name] for name in launch.reads if name in writer}))
            assert all(j < i for j in launch.after)


def test_living_buffers_are_apart(model: Model) -> None:
    """A buffer is untouched from its write to its last read, seen from the launches alone."""
    for plan in model.plans.values():
        buffers = {b.name: b for b in plan.buffers}
        for i, launch in enumerate(plan.launches):
            for name in launch.writes:
                readers = [j for j, other in enumerate(plan.launches) if name in other.reads]
                for other in plan.launches[i + 1 : max(readers, default=i)]:
                    assert not any(
                        overlap(buffers[name], buffers[w]) for w in other.writes if name in buffers and w in buffers
                    )


def test_regions_hold_every_buffer(model: Model) -> None:
    for plan in model.plans.values():
        arena = plan.arena
        for b in plan.buffers:
            assert b.offset + b.row_bytes <= (
                arena.bytes_per_token if b.rows == RowKind.TOKEN.value else arena.bytes_per_row
            )
        assert model.arena.buffers_per_token >= arena.bytes_per_token and model.arena.per_row >= arena.bytes_per_row


def test_the_json_is_the_plan(model: Model) -> None:
    for name, plan in model.plans.items():
        content = json.loads(plan.to_json())
        assert content["entry"] == name and content["format"] == 1
        assert [launch["op"] for launch in content["launches"]] == [launch.op for launch in plan.launches]
        weights = {w for launch in content["launches"] for w in launch["weights"]}
        assert weights and all(weights)


def test_the_checker_sees_a_missing_sync() -> None:
    model = rendered(llama(1), Scheme.F32)
    plan = model.plans["prefill"]
    for i, launch in enumerate(plan.launches):
        if launch.sync:
            without = tuple(replace(o, sync=False) if o is launch else o for o in plan.launches)
            broken = Plan(plan.entry, plan.buffers, without, plan.nodes, plan.names, plan.arena)
            assert races(broken), i


def test_the_same_graph_gives_the_same_sources() -> None:
    first, second = (rendered(gemma(), Scheme.INT8) for _ in range(2))
    assert first.sources == second.sources
    assert {n: p.to_json() for n, p in first.plans.items()} == {n: p.to_json() for n, p in second.plans.items()}
