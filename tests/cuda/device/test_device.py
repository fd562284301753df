"""The runtime's CUDA device on toy engines, under the emulated driver: answers, memory, errors, and edges of graphs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llmc.codegen.cuda.target.gpus import GPUS
from llmc.codegen.cuda.target.nvrtc import TEMPLATES
from llmc.emulator import pairs
from llmc.emulator.build import build_twin
from llmc.emulator.devices import H100, Device, parse_device
from llmc.runtime.artifact.features import Machine
from llmc.runtime.cuda.plan import Plan
from tests.cuda import subprocesses
from tests.cuda.device import toy_engine

SMALL = H100.with_memory(64 << 20)
PROGRAM, FAULTS_PROGRAM, CONTEXTS_PROGRAM = "device.program", "device.faults", "device.contexts"
SERVING_PROGRAM = "device.serving"
SOUND = [
    "answers_in_any_company",
    "sampling_is_as_the_cpu_s",
    "logits_of_any_rows_in_any_chunks",
    "padding_is_inert",
    "graphs_are_made_once_per_bucket",
    "preemption_gives_the_same_answers",
    "a_driver_without_programmatic_edges",
]
FAULTS = [
    "memory_is_divided_and_given_back",
    "a_load_that_fails_gives_all_back",
    "weights_come_in_many_pieces",
    "a_refused_launch_names_its_kernel",
    "a_fault_ends_the_device",
    "kernels_one_by_one_name_what_faults",
    "an_interrupted_step_leaves_a_sound_engine",
    "a_graph_that_is_refused_for_another_reason",
    "a_fork_is_told_that_the_engine_is_not_its_own",
    "cuda_comes_first",
    "an_old_driver",
]


def too_much_shared(plan: Plan) -> Plan:
    """Of the prefill plan, a launch with more threads than its kernel was compiled for."""
    if plan.entry != "prefill":
        return plan
    launches = list(plan.launches)
    launch = launches[2]
    launches[2] = replace(launch, variants=(replace(launch.variants[0], block=64),))
    return replace(plan, launches=tuple(launches))


def beyond(plan: Plan) -> Plan:
    """With a kernel that writes outside of all memory, in place of the embedding."""
    launches = list(plan.launches)
    variant = launches[0].variants[0]
    arguments = (variant.arguments[0], variant.arguments[-1])
    launches[0] = replace(launches[0], variants=(replace(variant, kernel="beyond", arguments=arguments),))
    return replace(plan, launches=tuple(launches), kernels={**plan.kernels, "beyond": "kernels/sm_90a/toy.cubin"})


def edges(plan: Plan) -> list[tuple[int, int]]:
    return [(i, j) for i, launch in enumerate(plan.launches) for j in launch.after]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("toys")
    compiled, model = toy_engine.cubins(), toy_engine.Model.random()
    for name, text in toy_engine.sources().items():
        for checked in (False, True):
            twin = build_twin(text, [TEMPLATES], checked=checked, name=f"{name}.cu")
            pairs.install(compiled[name], twin, root / "twins", checked=checked)
    toy_engine.write(root / "toy", model, compiled)
    damaged = toy_engine.write(root / "damaged", model, compiled) / "weights.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\1")
    toy_engine.write(root / "too_much_shared", model, compiled, too_much_shared)
    toy_engine.write(root / "beyond", model, compiled, beyond)
    for launch, before in edges(toy_engine.plan("prefill")):
        drop = lambda plan, i=launch, j=before: toy_engine.without_edge(plan, i, j)  # noqa: E731
        toy_engine.write(root / f"edge-{launch}-{before}", model, compiled, drop)
    cpu = toy_engine.target(kind="cpu", name="cpu", arch=Machine.this().arch, kernels="kernels/cpu", plans="plans/h100")
    a100 = toy_engine.target(name="a100", arch="sm_80")
    toy_engine.write(root / "mixed", model, compiled, targets=(cpu, a100, toy_engine.target()))
    return root


def check(
    folder: Path,
    program: str,
    names: list[str],
    checked: bool = False,
    schedule: str = "forward",
    devices: Sequence[Device] = (SMALL,),
) -> None:
    done = subprocesses.run(program, *names, folder=folder, checked=checked, schedule=schedule, devices=devices)
    assert done.returncode == 0, done.stderr
    problems = {r["check"]: r["problem"] for r in map(json.loads, done.stdout.splitlines())}
    assert list(problems) == names
    assert not any(problems.values()), "\n".join(problems.values())


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random:5"])
@pytest.mark.parametrize("checked", [False, True], ids=["fast", "checked"])
def test_answers(folder: Path, schedule: str, checked: bool) -> None:
    check(folder, PROGRAM, SOUND, checked, schedule)


@pytest.mark.parametrize("schedule", ["forward", "random:5"])
def test_faults(folder: Path, schedule: str) -> None:
    check(folder, FAULTS_PROGRAM, FAULTS, schedule=schedule)


@pytest.mark.parametrize("schedule", ["forward", "reverse", "random:5"])
def test_every_missing_edge_shows(folder: Path, schedule: str) -> None:
    check(folder, PROGRAM, ["every_missing_edge_shows"], True, schedule)


@pytest.mark.parametrize("schedule", ["forward", "random:5"])
def test_serving(folder: Path, schedule: str) -> None:
    check(folder, SERVING_PROGRAM, ["late_and_in_lockstep_alike", "in_a_process_of_its_own"], schedule=schedule)


def test_contexts(folder: Path) -> None:
    names = ["callers_keep_their_contexts", "one_engine_in_many_threads", "a_caller_s_memory_outlives_the_engine"]
    check(folder, CONTEXTS_PROGRAM, names, devices=[SMALL, SMALL])


def test_too_little_memory(folder: Path) -> None:
    check(folder, FAULTS_PROGRAM, ["too_little_memory"], devices=[H100.with_memory(1 << 20)])
    check(folder, FAULTS_PROGRAM, ["not_even_the_arrays_of_steps"], devices=[H100.with_memory(1 << 16)])


def test_another_gpu(folder: Path) -> None:
    check(folder, FAULTS_PROGRAM, ["only_the_gpu_it_was_built_for"], devices=[parse_device(GPUS["a100"].device)])
