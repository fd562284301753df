"""The report of a card runs to its end on the emulated one, and shows every primitive."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmc.codegen.cuda.attention.layer import Layer
from llmc.codegen.cuda.attention.params import DecodeAttentionParams, PrefillAttentionParams
from llmc.codegen.cuda.sample.params import SampleParams
from llmc.ir.types import DType

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "bench" / "gpu"

pytest.importorskip("cuda.bindings", reason="needs the extra `cuda`: pip install llmc[cuda]")


@pytest.fixture(scope="module")
def primitives():
    folders = [str(GPU), str(ROOT / "tests" / "cuda")]
    sys.path[:0] = folders
    try:
        import primitives
    finally:
        for folder in folders:
            sys.path.remove(folder)
    return primitives


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hollow engine of a Qwen3 of two layers, and cubins of all that a tiny report launches."""
    folder = tmp_path_factory.mktemp("prepared")
    command = [sys.executable, str(GPU / "prepare.py"), "--tiny", "--target", "h100", "--models", "Qwen3-0.6B"]
    done = subprocess.run([*command, "--out", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Qwen3-0.6B" in done.stdout and "cubins of checks" in done.stdout
    return folder


def run_emulated(prepared: Path, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(GPU / "run.py"), "--emulate", "--models", "Qwen3-0.6B", "--seed", "1"]
    command += ["--prepared", str(prepared), "--out", str(out), "--minutes", "60", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_report_is_complete_and_finds_nothing_wrong(prepared: Path, tmp_path: Path) -> None:
    """All parts in their processes, one model among them: filled, loaded, served."""
    done = run_emulated(prepared, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.json")
    report = json.loads(path.read_text())
    assert report["complete"] and report["wrong"] == 0 and report["tiny"] and not report["notes"]
    parts = {name: part["items"] for name, part in report["parts"].items()}
    assert list(parts) == ["limits", "primitives", "kernels", "engines", "times", "model Qwen3-0.6B"]
    assert all(part["complete"] and not part["errors"] for part in report["parts"].values())
    # everything that was launched had been prepared: a card's machine needs no compiler
    assert all(item.get("compiled_here", 0) == 0 for items in parts.values() for item in items.values())
    assert len(parts["primitives"]) >= 40 and not any(item["error"] for item in parts["primitives"].values())
    timed = {name: item for name, item in parts["times"].items() if name != "libraries"}
    assert len(parts["kernels"]) == len(timed) and all(r["seconds"] and r["bytes"] for r in timed.values())
    check_model(parts["model Qwen3-0.6B"])
    engine = parts["engines"]["Qwen3-0.6B"]
    assert engine["made_here"] is False and engine["old"] is False and engine["built_for"] == "h100"
    for text in (
        "TPOT, batch 2",
        "TTFT, 40 tokens",
        "cold start",
        "predicted",
        "torch/ours",
        "nothing wrong; complete",
    ):
        assert text in done.stdout


def check_model(items: dict[str, dict[str, Any]]) -> None:
    """Every figure, and beside it what was expected."""
    names = ["cold start", "TPOT, batch 1", "TPOT, batch 2", "TTFT, 8 tokens", "TTFT, 40 tokens", "sound"]
    assert list(items) == names
    for name in names[:-1]:
        assert items[name]["seconds"] > 0 and items[name]["floor_s"] > 0
    for name in names[1:-1]:
        assert items[name]["expected_s"] > 0 and items[name]["graph_build_s"] >= 0
    start = items["cold start"]
    whole = start["imports_s"] + start["load_s"] + start["first_token_s"]
    assert start["seconds"] == pytest.approx(whole) and start["weights_bytes"] > 0 and start["kv_bytes"] > 0
    assert not items["sound"]["error"] and items["sound"]["compared_tokens"] > 1 and items["sound"]["logits_std"] > 0.01


def test_a_model_that_faults_is_named_and_the_rest_is_kept(prepared: Path, tmp_path: Path) -> None:
    """Decode attention reads far outside of the cache, which ends the context of the process each time."""
    broken = shutil.copytree(prepared, tmp_path / "prepared")
    path = broken / "engines" / "h100" / "Qwen3-0.6B" / "plans" / "h100" / "decode.json"
    plan = json.loads(path.read_text())
    attention = [launch for launch in plan["launches"] if launch["op"] == "paged_attention"]
    for argument in (a for launch in attention for v in launch["variants"] for a in v["arguments"]):
        if argument["kind"] == "i64":
            argument["value"] = 10**12
    path.write_text(json.dumps(plan))
    done = run_emulated(broken, tmp_path / "out", "--only", "model")
    assert done.returncode == 1 and "WRONG TPOT, batch 2" in done.stdout, done.stdout + done.stderr
    (report,) = (json.loads(p.read_text()) for p in (tmp_path / "out").glob("*.json"))
    part = report["parts"]["model Qwen3-0.6B"]
    assert list(part["items"]) == ["cold start", "TTFT, 8 tokens", "TTFT, 40 tokens", "sound"] and not part["left_out"]
    assert list(part["errors"]) == ["TPOT, batch 1", "TPOT, batch 2"]
    (named,) = report["parts"]["model Qwen3-0.6B, kernel by kernel"]["errors"].values()
    assert "attention_decode" in named and "paged_attention model.layers.0.self_attn" in named
    assert report["wrong"] >= 3


def test_an_engine_with_a_damaged_kernel_is_left_out_by_name(prepared: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(prepared, tmp_path / "prepared")
    cubin = min((broken / "engines" / "h100" / "Qwen3-0.6B" / "kernels" / "sm_90a").glob("*.cubin"))
    cubin.write_bytes(cubin.read_bytes()[:100])
    done = run_emulated(broken, tmp_path / "out", "--only", "model")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert f"{cubin.name}: the ELF image is cut off" in done.stdout.splitlines()[-1], done.stdout


@pytest.mark.parametrize("decode", [True, False])
def test_what_torch_is_compared_on_is_the_same_attention(
    primitives: Any, monkeypatch: pytest.MonkeyPatch, decode: bool
) -> None:
    """On this CPU: shapes, masks and grouped heads are those that the kernel is given."""
    torch = pytest.importorskip("torch")
    libraries = on_path(monkeypatch, "libraries")
    layer = Layer(DType.BF16, 4, 2, 16, 16, 64)
    params = DecodeAttentionParams(layer) if decode else PrefillAttentionParams(layer, DType.BF16)
    contexts, rows = ((9, 9, 9), (1, 1, 1)) if decode else ((9,), (9,))
    drawn = []
    randn = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *shape, **kind: drawn.append(randn(*shape, **kind)) or drawn[-1])
    library = libraries.library_for(params, {"contexts": contexts, "rows": rows}, torch, "cpu")
    got = library.run().float().numpy()
    q, k, v = (x.double().numpy() for x in drawn)
    assert got.shape == (len(rows), 4, rows[0], 16)
    k, v = (np.repeat(x, 2, axis=1) for x in (k, v))
    scores = np.einsum("shqd,shkd->shqk", q, k) / 4
    seen = np.arange(9)[None] <= np.arange(9 - rows[0], 9)[:, None]
    weights = np.exp(np.where(seen, scores, -np.inf))
    want = np.einsum("shqk,shkd->shqd", weights / weights.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(got, want, rtol=0.03, atol=0.03)


def test_what_torch_is_compared_on_is_the_same_linear(primitives: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    libraries, shapes = on_path(monkeypatch, "libraries"), on_path(monkeypatch, "linear_shapes")
    plain = shapes.mma("plain", 96, 64, 64, 64, 8, shapes.S, 2)
    library = libraries.library_for(plain, {"T": 5}, torch, "cpu")
    assert library.run().shape == (5, 96) and library.run().dtype == torch.bfloat16
    assert libraries.library_for(SampleParams(64, 64), {"rows": 1}, torch, "cpu") is None
    windowed = DecodeAttentionParams(Layer(DType.BF16, 4, 2, 16, 16, 64, window=8))
    assert libraries.library_for(windowed, {"contexts": (9,), "rows": (1,)}, torch, "cpu") is None


def on_path(monkeypatch: pytest.MonkeyPatch, module: str) -> Any:
    """A module of the bench, found as it is when the bench runs."""
    for folder in (ROOT / "tests" / "cuda", GPU):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module(module)


def test_every_primitive_is_shown(primitives) -> None:  # type: ignore[no-untyped-def]
    sources = "".join(source for check in primitives.CHECKS for source in check.sources)
    names = primitives.named((ROOT / "templates" / "cuda" / "device.cuh").read_text())
    assert len(names) > 40
    assert sorted(name for name in names if f"{name}(" not in sources and f"{name}<" not in sources) == []


def test_a_wrong_value_is_named(primitives) -> None:  # type: ignore[no-untyped-def]
    got, want = np.zeros((2, 3)), np.zeros((2, 3))
    got[1, 2] = 5
    with pytest.raises(AssertionError, match=r"mma: 1 of 6 differ, first at \(1, 2\): 5\.0 for 0\.0"):
        primitives.equal("mma", got, want)
    with pytest.raises(AssertionError, match="nan for 0"):
        primitives.equal("nan", np.array([np.nan]), np.array([0.0]))


def test_no_case_hides_another(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_cases = on_path(monkeypatch, "cases")
    for cases in (gpu_cases.TIMED, gpu_cases.checked(False), gpu_cases.checked(True)):
        found = gpu_cases.named(cases)
        assert list(found.values()) == list(cases)
    templates = {case.params.template for case in gpu_cases.TIMED}
    assert {"rows", "attention_combine", "attention_decode", "attention_prefill", "sample"} <= templates
