"""Engines without weights: made from a config alone, filled where they run, and engines like all others then."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from llmc.codegen.hollow import fill, is_hollow
from llmc.compiler.build import BuildOptions, build
from llmc.ir.formats import Scheme
from llmc.runtime import Engine
from llmc.runtime.artifact.artifact import WEIGHTS
from llmc.runtime.artifact.manifest import Manifest
from llmc.runtime.errors import ManifestInvalid, NotAnEngine, OutputOccupied
from tests.e2e.engines import Engines, Silent


def hollow_of(model: Path, out: Path, scheme: Scheme = Scheme.BF16) -> Path:
    """Of a folder with the model's config.json and nothing else."""
    shapes = out.parent / "shapes" / model.name
    shapes.mkdir(parents=True)
    shutil.copy(model / "config.json", shapes)
    build(BuildOptions(str(shapes), out, scheme=scheme, hollow=True), Silent())
    return out


@pytest.fixture(scope="module")
def model(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama, stored in bf16 as checkpoints are."""
    module, _ = engines.model("llama")
    folder = tmp_path_factory.mktemp("model") / "llama"
    rounded = copy.deepcopy(module)
    torch.nn.Module.to(rounded, torch.bfloat16)
    rounded.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def hollow(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hollow_of(model, tmp_path_factory.mktemp("hollow") / "llama")


def answers(filled: Path, manifest: Manifest) -> None:
    with Engine.load(filled) as engine:
        assert engine.manifest == manifest
        logits = engine.logits([5, 17, 3, 44, 9])
        assert np.isfinite(logits).all() and 0.01 < float(logits.std()) < 100
        (answer,) = engine.generate([[1, 2, 3]], max_tokens=4, ignore_eos=True)
        assert len(answer.token_ids) == 4


def test_a_filled_engine_is_a_built_one_with_other_weights(model: Path, hollow: Path, tmp_path: Path) -> None:
    built, filled = tmp_path / "built", tmp_path / "filled"
    build(BuildOptions(str(model), built, certify=0), Silent())
    manifest = fill(hollow, filled)
    names = {p.relative_to(built).as_posix() for p in built.rglob("*") if p.is_file()}
    assert names == {p.relative_to(filled).as_posix() for p in filled.rglob("*") if p.is_file()}
    differing = {n for n in names if (built / n).read_bytes() != (filled / n).read_bytes()}
    assert differing <= {WEIGHTS, "manifest.json", "report.json", "report.html"} and WEIGHTS in differing
    assert (built / WEIGHTS).stat().st_size == (filled / WEIGHTS).stat().st_size
    answers(filled, manifest)


def test_weights_that_are_computed_from_others(engines: Engines, tmp_path: Path) -> None:
    """int8 with its scales: not cut out of a block of bytes, but made of random sources."""
    _, model = engines.model("qwen3")
    filled = tmp_path / "filled"
    answers(filled, fill(hollow_of(model, tmp_path / "hollow", Scheme.INT8), filled))


def test_filling_is_deterministic_whoever_does_it(hollow: Path, tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in hollow.rglob("*") if p.is_file()}
    told: list[tuple[int, int]] = []
    one = fill(hollow, tmp_path / "one", progress=lambda done, total: told.append((done, total)))
    assert one == fill(hollow, tmp_path / "two", workers=3)
    assert told == sorted(told) and told[-1][0] <= told[-1][1] == one.targets[0].memory.weights_bytes
    assert before == {p: p.read_bytes() for p in hollow.rglob("*") if p.is_file()}  # and may be filled again


def test_a_hollow_engine_is_no_engine(model: Path, hollow: Path, tmp_path: Path) -> None:
    assert is_hollow(hollow) and not is_hollow(model)
    with pytest.raises(NotAnEngine, match=r"no manifest\.json"):
        Engine.load(hollow)
    with pytest.raises(ManifestInvalid, match=r"no hollow\.json"):
        fill(model, tmp_path / "out")
    with pytest.raises(OutputOccupied):
        fill(hollow, model)
    with pytest.raises(OutputOccupied):
        build(BuildOptions(str(model), model, hollow=True), Silent())


def test_a_graph_of_another_build_is_refused(hollow: Path, tmp_path: Path) -> None:
    hollow = shutil.copytree(hollow, tmp_path / "hollow")
    path = hollow / "hollow.json"
    manifest = json.loads(path.read_text())
    manifest["targets"][0]["memory"]["weights_bytes"] += 128
    path.write_text(json.dumps(manifest))
    with pytest.raises(ManifestInvalid, match="prepare it again"):
        fill(hollow, tmp_path / "out")
    (hollow / "plans" / "cpu" / "graph.llmc").write_text("graph broken")
    with pytest.raises(ManifestInvalid, match=r"graph\.llmc"):
        fill(hollow, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["hollow.json", "buffers.safetensors", "plans/cpu/graph.llmc"])
@pytest.mark.parametrize("damage", ["cut off", "empty", "no text"])
def test_a_damaged_hollow_engine_is_refused_in_one_line(hollow: Path, tmp_path: Path, name: str, damage: str) -> None:
    hollow = shutil.copytree(hollow, tmp_path / "hollow")
    whole = (hollow / name).read_bytes()
    (hollow / name).write_bytes({"cut off": whole[: len(whole) // 2], "empty": b"", "no text": b"\xff\xfe"}[damage])
    with pytest.raises(ManifestInvalid, match=Path(name).name) as caught:
        fill(hollow, tmp_path / "out")
    assert "\n" not in str(caught.value) and not any(tmp_path.glob("*out*")) and not any(tmp_path.glob(".*"))
