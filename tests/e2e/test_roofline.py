"""`llmc inspect --roofline` as users meet it: tables, JSON, refusals."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from llmc.codegen.cpu.target import cpu_target
from llmc.codegen.cuda.target.assumptions import ASSUMED, Assumptions
from llmc.codegen.kv_groups import BLOCK_TOKENS
from llmc.compiler.commands import roofline_console
from llmc.compiler.commands.roofline_console import RooflineOptions, show_roofline
from llmc.compiler.roofline.fit import shortage
from llmc.compiler.roofline.open_subject import open_subject
from llmc.compiler.roofline.predict import CHUNK, Kernel, Point, Prediction, Total, predict, prefill_steps
from llmc.compiler.roofline.subject import PredictionError
from llmc.compiler.targets.backend import Backend
from llmc.compiler.targets.cuda import CudaBackend
from llmc.compiler.targets.find import find_target
from llmc.ir.formats import Scheme
from tests.e2e.commands import Commands
from tests.e2e.engines import Engines
from tests.e2e.refusals import refused

CONFIGS = Path(__file__).parents[2] / "bench" / "configs"


@pytest.fixture
def config(speaking: Path, tmp_path: Path) -> Path:
    """A folder with the config.json of a tiny Llama and nothing else."""
    folder = tmp_path / "shapes"
    folder.mkdir()
    shutil.copy(speaking / "config.json", folder)
    return folder


def checked(value: Any, kind: type, path: str = "$") -> None:
    """The JSON of a dataclass: exactly its fields, each of its type."""
    assert set(value) == {f.name for f in fields(kind)}, path
    for field in fields(kind):
        got, annotation = value[field.name], str(field.type)
        where = f"{path}.{field.name}"
        match annotation:
            case "int":
                assert isinstance(got, int) and got >= 0, where
            case "str":
                assert isinstance(got, str), where
            case "float" | "float | None":
                assert got is None or isinstance(got, float | int), where
            case "int | None" | "bool | None" | "str | None":
                assert got is None or isinstance(got, int | str), where
            case "Mapping[str, float | None]":
                assert all(isinstance(k, str) for k in got), where
            case "Total":
                checked(got, Total, where)
            case "tuple[Kernel, ...]" | "tuple[Point, ...]":
                for i, item in enumerate(got):
                    checked(item, Kernel if "Kernel" in annotation else Point, f"{where}[{i}]")
            case _:
                raise AssertionError(f"{where}: {annotation}")


def test_json(llmc: Commands, config: Path) -> None:
    ended = llmc.run(
        "inspect", config, "--roofline", "--target", "h100,a100", "--batch", "1,4", "--length", "64", "--json"
    )
    assert ended.code == 0, ended
    stages = ["loading torch and transformers", "reading the model", "capturing the graph", "optimising", "predicting"]
    assert ended.stderr.splitlines() == stages
    found = json.loads(ended.stdout)
    assert set(found) == {"format", "predicted", "model", "chunk", "assumptions", "does_not_fit", "targets"}
    assert found["does_not_fit"] == [] and found["model"]["ignored_settings"] == []
    assert found["predicted"] is True and found["format"] == 1
    assert found["model"]["dtype"] == "bf16" and found["targets"][0]["lowered_for"] is None
    checked(found["assumptions"], Assumptions)
    assert [t["target"] for t in found["targets"]] == ["h100", "a100"]
    for target in found["targets"]:
        checked(target, Prediction)
        assert [p["batch"] for p in target["points"]] == [1, 4]
        for point in target["points"]:
            for total in (point["tpot"], point["ttft"]):
                assert total["floor_s"] == pytest.approx(sum(k["floor_s"] for k in total["kernels"]))
                assert total["expected_s"] == pytest.approx(sum(k["expected_s"] for k in total["kernels"]))
                assert 0 < total["fraction"] < 1
                assert total["launches"] == sum(k["launches"] for k in total["kernels"])


def test_tables(llmc: Commands, config: Path) -> None:
    ended = llmc.run(
        "inspect", config, "--roofline", "--target", "h200", "--batch", "2", "--length", "64", COLUMNS="200"
    )
    assert ended.code == 0, ended
    for text in (
        "PREDICTED",
        "not measured",
        "h200",
        "TPOT floor",
        "packed_linear",
        "paged_attention",
        "most fit",
    ):
        assert text in ended.stdout
    assert "--kernels" not in ended.stdout  # there is no other
    narrow = llmc.run(
        "inspect", config, "--roofline", "--target", "h200", "--batch", "2", "--length", "64", COLUMNS="80"
    )
    assert max(map(len, narrow.stdout.splitlines())) <= 80 and "\u2026" not in narrow.stdout  # nothing is cut off


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_gpu_s_two_formats(llmc: Commands, config: Path, dtype: str) -> None:
    """Both have kernels on GPUs, so something is expected of each of them."""
    asked = ("--target", "h100", "--batch", "2", "--length", "64", "--dtype", dtype, "--json")
    ended = llmc.run("inspect", config, "--roofline", *asked)
    assert ended.code == 0, ended
    found = json.loads(ended.stdout)
    assert found["model"]["dtype"] == dtype
    kernels = found["targets"][0]["points"][0]["tpot"]["kernels"]
    assert {k["matrix_unit"] for k in kernels} == {"", dtype}
    assert all(k["expected_s"] > k["floor_s"] for k in kernels)


def test_a_graph_that_another_llmc_printed_is_refused(
    engines: Engines, speaking: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"graph decode {\n  inputs %w: bf16[8, 8]{panels32x2p32}\n}\n"
    monkeypatch.setattr("llmc.compiler.roofline.open_subject.read_file", lambda *_: text)
    subject = open_subject(str(engines.engine(speaking, Scheme.INT8)), None)
    with pytest.raises(PredictionError, match=r"plans/cpu/graph.llmc is not as .*'panels32x2p32'.: build the engine"):
        subject.lowered(find_target("cpu"))


def test_an_engine_is_predicted_as_it_was_built(
    llmc: Commands, engines: Engines, speaking: Path, tmp_path: Path
) -> None:
    engine = engines.engine(speaking, Scheme.INT8)
    ended = llmc.run(
        "inspect", engine, "--roofline", "--target", "cpu,h100", "--batch", "1", "--length", "64", "--json"
    )
    assert ended.code == 0, ended
    found = json.loads(ended.stdout)
    assert found["model"]["dtype"] == "int8"
    cpu, h100 = found["targets"]
    assert cpu["lowered_for"] == h100["lowered_for"] == "cpu"
    (target,) = json.loads((engine / "manifest.json").read_text())["targets"]
    assert cpu["kv_bytes_per_token"] == target["memory"]["kv_bytes_per_token"]
    assert cpu["arena_bytes_per_token"] + 4 == target["memory"]["arena"]["per_token"]  # and whose the token is
    # on disk each weight begins at a multiple of 128 bytes
    with safe_open(str(engine / "weights.safetensors"), framework="np") as weights:
        padding = target["memory"]["weights_bytes"] - cpu["weight_bytes"]
        assert 0 <= padding < 128 * len(weights.keys())
    # of this CPU nothing is known before it is measured, and nothing is made up
    assert cpu["bandwidth"] is None and cpu["largest_batch"] is None
    assert cpu["points"][0]["tpot"]["floor_s"] is None and cpu["points"][0]["tpot"]["expected_s"] is None
    assert cpu["points"][0]["tpot"]["memory_bytes"] > 0
    assert {k["matrix_unit"] for k in h100["points"][0]["tpot"]["kernels"]} >= {"s8"}
    refused(llmc.run("inspect", engine, "--roofline", "--dtype", "bf16"), "is an engine in int8")


def test_measured_limits_of_a_cpu(llmc: Commands, config: Path, tmp_path: Path) -> None:
    target = cpu_target("x86-64-v3")
    limits = tmp_path / "limits.json"
    peaks = {"f32": 2e11, "bf16": 3e11, "f16": None, "e4m3": None, "s8": None}
    content = {"format": 1, "mcpu": target.mcpu, "threads": 2, "bandwidth": 17e9, "peaks": peaks}
    limits.write_text(json.dumps(content))
    arguments = ("inspect", config, "--roofline", "--batch", "1", "--length", "64", "--limits", limits)
    ended = llmc.run(*arguments, "--target", "x86-64-v3", "--json")
    assert ended.code == 0, ended
    (found,) = json.loads(ended.stdout)["targets"]
    tpot = found["points"][0]["tpot"]
    linears = [k for k in tpot["kernels"] if k["op"] == "packed_linear"]
    for kernel in linears:
        assert kernel["bound"] == "memory" and kernel["expected_s"] is None
        assert kernel["floor_s"] == pytest.approx(kernel["memory_bytes"] / 17e9)
    refused(llmc.run(*arguments, "--target", "x86-64-v4"), "measured on x86_64_v3")
    refused(llmc.run(*arguments, "--target", "h100"), "measured on x86_64_v3", "h100 (H100")
    refused(llmc.run("inspect", config, "--roofline", "--limits", config / "none"), "none")


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("--target", "h1000"), ("unknown target 'h1000'", "h100")),
        (("--target", "h100,"), ("unknown target ''",)),
        (("--batch", "0"), ("--batch '0'", "from 1")),
        (("--batch", "1,x"), ("--batch '1,x'",)),
        (("--length", "100000"), ("--length 100000", "positions")),
    ],
)
def test_refusals(llmc: Commands, config: Path, arguments: tuple[str, ...], expected: tuple[str, ...]) -> None:
    refused(llmc.run("inspect", config, "--roofline", *arguments), *expected)


def test_targets_are_listed_with_their_figures(llmc: Commands) -> None:
    ended = llmc.run("targets", COLUMNS="150")
    assert ended.code == 0
    for text in ("x86-64-v3", "h100", "H100 80GB SXM, sm_90a", "132", "3,350 GB/s", "989 TFLOP/s", "b200"):
        assert text in ended.stdout


def test_no_config(llmc: Commands, tmp_path: Path) -> None:
    refused(llmc.run("inspect", tmp_path, "--roofline"), str(tmp_path), "config.json is missing")
    refused(llmc.run("inspect", tmp_path / "nowhere", "--roofline"), "nowhere")


def test_options_of_another_command(llmc: Commands, config: Path) -> None:
    ended = llmc.run("inspect", config, "--target", "h100")
    assert ended.code == 2 and "--target goes with --roofline" in ended.stderr
    refused(llmc.run("inspect", config), "manifest.json")


def test_a_batch_that_does_not_fit(config: Path) -> None:
    target = find_target("rtx4090")
    lowering = open_subject(str(config), None).lowered(target)
    one = predict(lowering, target, [1], 64)
    largest = one.largest_batch
    assert one.points[0].fits is True and largest is not None
    fits, not_any_more = predict(lowering, target, [largest, largest + 1], 64).points
    assert fits.fits and not not_any_more.fits


def small_gpu(config: Path, length: int) -> Callable[[str], Backend]:
    """Targets by name, of which rtx4090 has not quite the memory for the weights and a sequence of this length."""
    target = find_target("rtx4090")
    assert isinstance(target, CudaBackend)
    p = predict(open_subject(str(config), None).lowered(target), target, [1], length)
    blocks = -(-length // BLOCK_TOKENS)
    needed = p.weight_bytes + p.arena_bytes_per_token * CHUNK + p.arena_bytes_per_row
    needed += p.kv_bytes_per_token * BLOCK_TOKENS * blocks
    small = CudaBackend(replace(target.target, memory_bytes=int((needed - 1) / ASSUMED.memory)))
    return lambda name: small if name == "rtx4090" else find_target(name)


def test_a_model_that_does_not_fit(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said first, with what would fit; no time is predicted of what cannot run."""
    monkeypatch.setattr(roofline_console, "find_target", small_gpu(config, 64))
    monkeypatch.setenv("COLUMNS", "200")
    assert show_roofline(RooflineOptions(str(config), "rtx4090,h100", "1", length=64)) == 0
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert "in bf16 does not fit on one rtx4090: 0.0 GB of weights and" in first and "of 64 tokens" in first, first
    assert second.startswith(
        "it would fit on a100 or l40s or rtx4090 or h100 or h200 or b200, with --length 32 or less"
    )
    rows = [line for line in rest if line.strip().startswith(("rtx4090 ", "h100 ")) and "GB/s" not in line]
    assert "does not fit" in rows[0] and not re.search(r"\d\.\d", rows[0]) and re.search(r"\d\.\d", rows[1])
    assert "h100, batch 1: decode" in "\n".join(rest)  # the first that fits

    assert show_roofline(RooflineOptions(str(config), "rtx4090", "1", length=64)) == 0
    assert "TPOT" not in capsys.readouterr().out
    assert show_roofline(RooflineOptions(str(config), "rtx4090", "1", length=64, as_json=True)) == 0
    (lack,) = json.loads(capsys.readouterr().out)["does_not_fit"]
    assert lack["target"] == "rtx4090" and lack["longest"] == 32 and lack["gpus"] == 2
    assert show_roofline(RooflineOptions(str(config), "rtx4090", "1", length=32)) == 0
    assert "does not fit" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("weights", "target", "dtype", "fits", "ways"),
    [
        (
            141,
            "h100",
            "bf16",
            ("h200", "b200"),
            "it would fit on h200 or b200; 2 of h100 have the memory, but an engine",
        ),
        (32, "rtx4090", "f32", ("a100", "l40s", "h100", "h200", "b200"), ", with --dtype bf16; 2 of rtx4090"),
        (500, "a100", "bf16", (), "it fits on no GPU here; 7 of a100 have the memory"),
    ],
)
def test_what_would_fit(weights: int, target: str, dtype: str, fits: tuple[str, ...], ways: str) -> None:
    gpu = find_target(target)
    weight_bytes, memory = int(weights * 1e9), gpu.memory_bytes
    found = Prediction(target, "", None, None, {}, memory, weight_bytes, 327_680, 100_000, 500_000, 0, ())
    lack = shortage(found, gpu, dtype, 1024, CHUNK)
    assert lack is not None and lack.fits == fits
    assert ways in lack.lines("m", dtype, 1024)[1]
    assert shortage(replace(found, largest_batch=1), gpu, dtype, 1024, CHUNK) is None


def test_the_length_is_what_the_model_has_where_none_is_asked_for(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GPT-2 has 1,024 positions, and one of them is for an answer."""
    settings = json.loads((config / "config.json").read_text()) | {"max_position_embeddings": 100}
    (config / "config.json").write_text(json.dumps(settings))
    assert show_roofline(RooflineOptions(str(config), "h100", "1")) == 0
    assert "predicted, 99 tokens per sequence" in capsys.readouterr().out
    assert show_roofline(RooflineOptions(str(config), "h100", "1", length=100)) == 2
    assert "has 100 positions, for answers as well" in capsys.readouterr().err


@pytest.mark.parametrize("batch, length, chunk", [(1, 100, 32), (5, 7, 32), (3, 32, 32), (1, 1, 1), (9, 31, 32)])
def test_prefill_steps_hold_every_token_once(batch: int, length: int, chunk: int) -> None:
    steps = list(prefill_steps(batch, length, chunk))
    assert sum(s.tokens for s in steps) == batch * length
    assert all(s.tokens <= chunk for s in steps)
    pairs = sum(sum(range(s.past + 1, s.past + s.new + 1)) * s.seqs for s in steps)
    assert pairs == batch * length * (length + 1) // 2


@dataclass(frozen=True)
class Shape:
    """A published model, as far as its floors go. `head`: bytes of the head's matrix, `looked_up`: of an embedding that
    is not the head too."""

    layers: int
    hidden: int
    inter: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = True

    @property
    def layer_parameters(self) -> int:
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.inter

    @property
    def head(self) -> int:
        return 2 * self.vocab * self.hidden

    @property
    def kv(self) -> int:
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


SHAPES = {
    "SmolLM2-135M": Shape(30, 576, 1536, 9, 3, 64, 49152),
    "Llama-3.2-1B": Shape(16, 2048, 8192, 32, 8, 64, 128256),
    "Qwen3-0.6B": Shape(28, 1024, 3072, 16, 8, 128, 151936),
    "Llama-3.1-8B": Shape(32, 4096, 14336, 32, 8, 128, 128256, tied=False),
}


@pytest.mark.parametrize(
    "name", [n if n == "Llama-3.2-1B" else pytest.param(n, marks=pytest.mark.soak) for n in SHAPES]
)
def test_floors_of_real_models_by_hand(name: str) -> None:
    """A decode step reads all matrices once, and keys and values of each sequence; a prompt multiplies all of them."""
    shape = SHAPES[name]
    target = find_target("h100")
    found = predict(open_subject(str(CONFIGS / name), None).lowered(target), target, [1, 8], 1024)
    matrices = 2 * shape.layers * shape.layer_parameters + shape.head
    assert found.kv_bytes_per_token == shape.kv
    norms = found.weight_bytes - matrices - (0 if shape.tied else shape.head)
    assert 0 < norms < 1e-3 * matrices
    for point in found.points:
        least = (matrices + point.batch * 1025 * shape.kv) / 3.35e12
        assert point.tpot.floor_s == pytest.approx(least, rel=2e-3)
    pairs = 1024 * 1025 // 2
    flops = 2 * 1024 * shape.layers * shape.layer_parameters + 4 * pairs * shape.layers * shape.heads * shape.head_dim
    least = flops / 989.4e12 + shape.head / 3.35e12
    assert found.points[0].ttft.floor_s == pytest.approx(least, rel=4e-2)


def test_lowered_for_cuda(config: Path) -> None:
    """The CUDA graph's attention takes its casts in, so that it has fewer launches than the CPU's."""
    subject = open_subject(str(config), None)
    cpu, cuda = (subject.lowered(find_target(name)).entries["decode"] for name in ("x86-64-v3", "h100"))
    assert len(cuda.nodes) < len(cpu.nodes)
