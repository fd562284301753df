"""What rounding one linear costs, measured: against doing it by hand, on tiny models."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from llmc.codegen.engine_weights import graphs_of
from llmc.compiler.build import BuildError, BuildOptions, build
from llmc.compiler.capture.capture import capture
from llmc.compiler.progress import Progress
from llmc.compiler.quality.budget import Budget
from llmc.compiler.quality.calibrated import Calibrating
from llmc.compiler.quality.formats import measure_units
from llmc.compiler.quality.sensitivity import Calibration
from llmc.compiler.quality.units import Part, Unit, units_of
from llmc.compiler.sources.resolve import open_source
from llmc.compiler.verify.certificate import read_certificate
from llmc.compiler.verify.errors import VerificationError
from llmc.ir.formats import Scheme, WeightLayout
from llmc.ir.ops.kernel import PackedLinear
from llmc.ir.ops.reduce import Linear
from llmc.ir.quantise import quantise
from llmc.passes.choose_formats import At, ChooseFormats, scheme_of
from llmc.passes.pipeline import default_pipeline, run_until_formats
from llmc.passes.rewrite import RuleLog
from llmc.runtime.artifact.artifact import read_manifest
from llmc.runtime.artifact.manifest import Limits
from tests.e2e.commands import Commands
from tests.e2e.conftest import llmc, speaking
from tests.e2e.engines import Engines
from tests.e2e.shared_engines import engines
from tests.tiny_models import config_of, eager_model

__all__ = ["engines", "llmc", "speaking"]
SEQUENCES = [list(range(3, 35)), list(range(40, 72))]
NUMBERS = Scheme.INT4.weight


def by_hand(model: PreTrainedModel, names: tuple[str, ...], transposed: bool = False) -> float:
    """KL of a copy with these weights rounded."""
    other = copy.deepcopy(model)
    for name in names:
        weight = other.get_parameter(f"{name}.weight")
        values = weight.detach().numpy()
        rounded = quantise(values.T if transposed else values, NUMBERS).floats().astype(np.float32)
        with torch.no_grad():
            weight.copy_(torch.from_numpy(np.ascontiguousarray(rounded.T if transposed else rounded)))
    with torch.no_grad():
        right, wrong = (m(torch.tensor(SEQUENCES)).logits.double().log_softmax(-1) for m in (model, other))
    return float((right.exp() * (right - wrong)).sum(-1).mean())


@pytest.mark.parametrize(("family", "transposed"), [("llama", False), ("gemma3", False), ("gpt2", True)])
def test_units_and_what_rounding_them_costs(family: str, transposed: bool, engines: Engines) -> None:
    model, folder = engines.model(family)
    captured = capture(open_source(str(folder)))
    units = units_of(run_until_formats(captured.graph, default_pipeline(Scheme.INT4, 97)))
    sizes = [len(unit.modules) for unit in units]
    assert sizes == ([1, 1, 1, 1] * 2 if transposed else [3, 1, 2, 1] * 2) + [1]  # GPT-2 has q, k, v as one
    calibration = Calibration(model, SEQUENCES)
    for unit in (units[0], units[5], units[-1]):
        assert calibration.holds(unit)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        names = tuple(name.removesuffix(".weight") for part in unit.parts for name in part.tensors)
        by_columns = transposed and unit is not units[-1]
        assert calibration.kl(unit, NUMBERS) == pytest.approx(by_hand(model, names, by_columns), rel=1e-3)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not calibration.holds(Unit((Part("model.nowhere", ("nowhere",), (8, 8)),)))


def test_what_rounding_to_no_numbers_costs() -> None:
    """More than anything, where a scale of 16 bits is too small; in float32 it is none."""
    model = eager_model(config_of("llama"))
    down = model.get_parameter("model.layers.1.mlp.down_proj.weight")
    with torch.no_grad():
        down[3, 5] = 1e6
    unit = Unit((Part("down", ("model.layers.1.mlp.down_proj.weight",), (64, 96)),))
    (found,) = measure_units([unit], [Scheme.INT4, Scheme.INT8], Calibration(model, SEQUENCES), lambda *_: None)
    assert found.kl[Scheme.INT4] == float("inf") and found.kl[Scheme.INT8] < float("inf")
    with torch.no_grad():
        down[3, 5] = float("nan")
    with pytest.raises(VerificationError, match="over the calibration text are infinite or NaN"):
        Calibration(model, SEQUENCES)


def test_layers_before_the_change_are_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = eager_model(config_of("llama"))
    calibration = Calibration(model, SEQUENCES)
    runs: list[int] = []
    for at, layer in enumerate(model.model.layers):
        monkeypatch.setattr(layer.mlp, "forward", _counted(layer.mlp.forward, runs, at))
    name = "model.layers.1.mlp.down_proj"
    calibration.kl(Unit((Part(name, (f"{name}.weight",), (64, 96)),)), NUMBERS)
    assert runs == [1]


def _counted(forward: Any, runs: list[int], at: int) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        runs.append(at)
        return forward(*args, **kwargs)

    return run


def test_a_build_chooses_formats_and_says_why(engines: Engines, speaking: Path, llmc: Commands, tmp_path: Path) -> None:
    """A few bits more than int8: the linears that were dearest are bf16, what the user says stands, and the others are
    rounded for their inputs: their outputs are closer, though their weights are not."""
    at = (At("model.layers.0.mlp.*", Scheme.F32),)
    budget = Budget(bits=11.0)
    folder = tmp_path / "engine"
    build(BuildOptions(str(speaking), folder, "generic", Scheme.INT8, quality=budget, gptq=True, at=at), Progress())
    plain = engines.engine(speaking, Scheme.INT8, target="generic")
    found = json.loads((folder / "report.json").read_text())["formats"]
    assert found["budget"] == "bits=11" and found["tried"] == ["int8", "bf16"] and found["tokens"] == 256
    assert 9 < found["bits"] <= 11 and found["text"] == "built in"
    by_module = {m: unit["scheme"] for unit in found["units"] for m in unit["modules"]}
    assert set(by_module.values()) == {"int8", "bf16"}
    (graph, *_) = graphs_of(folder, read_manifest(folder).targets[0])
    for node in graph.nodes:
        if isinstance(node.op, PackedLinear):
            first = node.loc.split(" + ")[0]
            inside = next(module for module in by_module if module == first or module.startswith(f"{first}."))  # a gate
            wanted = "f32" if first.startswith("model.layers.0.mlp") else by_module[inside]
            assert str(node.op.scheme) == wanted, node.loc
    better, usual = (read_certificate(f, read_manifest(f)) for f in (folder, plain))
    assert better is not None and usual is not None and better.figures and usual.figures
    assert better.figures.kl_mean < usual.figures.kl_mean
    pairs = [(a, b) for a in better.layers for b in usual.layers if (a.module, a.scheme) == (b.module, b.scheme)]
    assert pairs and all(a.weight_error >= b.weight_error for a, b in pairs)
    assert sum(a.output_error or 0 for a, _ in pairs) < sum(b.output_error or 0 for _, b in pairs)
    shown = " ".join(llmc.run("inspect", folder).stdout.split())
    assert f"{found['bits']:.2f} bits a weight, chosen for bits=11" in shown


def test_a_head_in_four_bits_is_what_somebody_asked_for(engines: Engines) -> None:
    graph = capture(open_source(str(engines.model("llama")[1]))).graph
    for scheme, at, wanted in (
        (Scheme.INT4, (), Scheme.INT8),
        (Scheme.INT4, (At("lm_head", Scheme.INT4),), Scheme.INT4),
    ):
        options = BuildOptions("", Path("x"), scheme=scheme, at=at)
        pipeline = options.pipeline(97, WeightLayout.PANELS)
        (choosing,) = (p for p in pipeline.passes if isinstance(p, ChooseFormats))
        chosen = choosing.run(run_until_formats(graph, pipeline), RuleLog())
        schemes = [scheme_of(node) for node in chosen.nodes if isinstance(node.op, Linear)]
        assert schemes[-1] == wanted and set(schemes[:-1]) == {Scheme.INT4}


def test_the_same_text_the_same_choice(speaking: Path, tmp_path: Path) -> None:
    """Whatever the threads; another text may choose otherwise, and its name is told."""
    (tmp_path / "mine.txt").write_text("ab" * 200)
    source = open_source(str(speaking))
    captured = capture(source)
    threads = torch.get_num_threads()
    found = []
    for count, text in ((1, None), (2, None), (2, tmp_path / "mine.txt")):
        torch.set_num_threads(count)
        options = BuildOptions(str(speaking), tmp_path / "out", "generic", Scheme.INT8, calibrate=text)
        pipeline = options.pipeline(256, WeightLayout.PANELS)
        calibrating = Calibrating.load(options, source, Limits(128, 1, 64), Progress())
        found.append(calibrating.choose(Budget(bits=12.0), captured, pipeline))
    torch.set_num_threads(threads)
    assert found[0].to_json() == found[1].to_json()
    assert found[2].text == "mine.txt" and found[2].others and found[0].others


def test_what_cannot_be_chosen_is_refused(speaking: Path, engines: Engines, tmp_path: Path) -> None:
    def refused(match: str, model: Path = speaking, **options: Any) -> None:
        with pytest.raises(BuildError, match=match):
            build(BuildOptions(str(model), tmp_path / "out", "generic", **options), Progress())

    (tmp_path / "short").write_text("abc")
    some = Budget(bits=9.0)
    refused(r"--quality and --gptq need --dtype", quality=some, as_stored=True)
    refused(r"--calibrate short goes with --quality or --gptq", calibrate=Path("short"))
    refused(r"3 tokens, at least 128 expected", quality=some, scheme=Scheme.INT8, calibrate=tmp_path / "short")
    refused(r"--quality bits=3: int8 takes", quality=Budget(bits=3.0), scheme=Scheme.INT8)
    refused(r"--quality and --gptq need a tokenizer", engines.model("gemma3")[1], quality=some, scheme=Scheme.INT8)
