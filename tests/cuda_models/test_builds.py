"""Engines for GPUs: built without one, the same bytes every time, with the machine code that was meant."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sass
from e2e.engines import Engines, Silent

from llmc.codegen.cpu.toolchain import ToolchainError
from llmc.codegen.cuda.target import nvrtc
from llmc.compiler.build import BuildOptions, build
from llmc.ir.formats import Scheme
from llmc.ir.graph import IRError
from llmc.runtime.cuda.plan import Plan, read_plan

SMALL = {"max_batch": 4, "step_tokens": 64}


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def plan_of(engine: Path, target: str, entry: str) -> Plan:
    return read_plan((engine / "plans" / target / f"{entry}.json").read_bytes(), entry)


@pytest.fixture(scope="module")
def three(engines: Engines) -> Path:
    """A tiny Llama for two GPUs and this CPU."""
    _, folder = engines.model("llama")
    return engines.engine(folder, Scheme.BF16, target="h100,a100,cpu", **SMALL)


def test_two_builds_are_the_same_bytes(three: Path, engines: Engines, tmp_path: Path) -> None:
    """In another process and folder, with another hash seed."""
    _, folder = engines.model("llama")
    moved = tmp_path / "elsewhere" / folder.name
    shutil.copytree(folder, moved)
    command = [sys.executable, "-c", "from llmc.compiler.commands.cli import main; main()", "build", str(moved)]
    command += ["-o", str(tmp_path / "again"), "--target", "h100,a100,cpu", "--max-batch", "4", "--step-tokens", "64"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONHASHSEED": "7", "HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    first, second = contents(three), contents(tmp_path / "again")
    assert sorted(first) == sorted(second)
    assert [name for name in first if first[name] != second[name]] == []


def test_linears_of_a_prompt_run_on_wgmma_and_tma(three: Path) -> None:
    plan = plan_of(three, "h100", "prefill")
    linears = [launch for launch in plan.launches if launch.op == "packed_linear"]
    kernels = {variant.kernel for launch in linears for variant in launch.variants}
    assert len(linears) >= 2 * 4 + 1
    for kernel in kernels:
        counts = sass.opcodes((three / plan.kernels[kernel]).read_bytes())[kernel]
        assert sass.matching(counts, "HGMMA") >= 4 and sass.matching(counts, "UTMALDG.2D") >= 2, kernel


def test_an_engine_holds_what_people_read(three: Path) -> None:
    names = set(contents(three))
    for target, arch in (("h100", "sm_90a"), ("a100", "sm_80")):
        plan = plan_of(three, target, "decode")
        assert {f"kernels/{arch}/{symbol}.cubin" for symbol in plan.kernels} <= names
        assert {f"kernels/cuda/src/{symbol}.cu" for symbol in plan.kernels} <= names
        assert f"plans/{target}/graph.llmc" in names
    report = json.loads((three / "report.json").read_text())
    assert set(report["targets"]) == {"h100", "a100", "cpu"}
    for target in ("h100", "a100"):
        choices = report["targets"][target]["kernels"]
        assert {choice["op"] for choice in choices} == {"packed_linear", "paged_attention"}
        assert all("predicted" in choice["reason"] for choice in choices if choice["op"] == "packed_linear")
        # every tile but the one that was chosen was rejected, and says why
        assert all(
            choice["rejected"] and all(choice["rejected"].values())
            for choice in choices
            if choice["op"] == "packed_linear"
        )
        built = {symbol for choice in choices for symbol in choice["kernels"]}
        assert built <= {Path(name).stem for name in names if name.endswith(".cubin")}
    assert "h100" in (three / "report.html").read_text()


def test_gpus_share_their_weights(three: Path) -> None:
    """Both read every matrix row by row, once in the file; vectors they share with the CPU too."""
    plans = [plan_of(three, target, "decode").names("weight") for target in ("h100", "a100")]
    assert plans[0] == plans[1]


def test_nothing_of_cuda_is_loaded_for_a_cpu(engines: Engines, tmp_path: Path) -> None:
    """Neither driver nor compiler; torch itself imports cuda-python's modules where they are installed."""
    _, folder = engines.model("llama")
    script = f"""
from pathlib import Path
from llmc.compiler.build import BuildOptions, build
from e2e.engines import Silent
build(BuildOptions({str(folder)!r}, Path({str(tmp_path / "cpu")!r})), Silent())
print([line.split()[-1] for line in open("/proc/self/maps") if "libcuda" in line or "nvrtc" in line])
"""
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n{script}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr[-2000:]


def test_without_nvrtc_it_is_said_what_to_install(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> tuple[int, int]:
        raise ImportError("No module named 'cuda'")

    monkeypatch.setattr(nvrtc, "version", missing)
    _, folder = engines.model("llama")
    with pytest.raises(ToolchainError, match=r"target h100 needs NVRTC: pip install 'llmc\[cuda\]'"):
        build(BuildOptions(str(folder), tmp_path / "engine", target="h100"), Silent())
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize(("target", "scheme"), [("h100", Scheme.INT8), ("h100", Scheme.F32), ("h100,cpu", Scheme.F16)])
def test_formats_without_kernels_are_refused(target: str, scheme: Scheme, engines: Engines, tmp_path: Path) -> None:
    _, folder = engines.model("llama")
    with pytest.raises(IRError, match=rf"no C\w+ kernel multiplies in {scheme.name}: use "):
        build(BuildOptions(str(folder), tmp_path / "engine", target=target, scheme=scheme), Silent())


@pytest.mark.parametrize(("positions", "expected"), [(65535 * 128, ""), (65535 * 128 + 1, "65536 blocks along z")])
def test_contexts_beyond_a_grid_are_refused(positions: int, expected: str, engines: Engines, tmp_path: Path) -> None:
    """A block of the decode form for every split of 128 keys: seen at build, not in the first step."""
    _, folder = engines.model("llama")
    moved = tmp_path / "model"
    shutil.copytree(folder, moved)
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))
    options = BuildOptions(str(moved), tmp_path / "engine", target="h100", max_batch=1, step_tokens=16)
    if not expected:
        build(options, Silent())
        return
    with pytest.raises(IRError, match=rf"{expected} of its grid, CUDA takes 65535: .*--max-seq-len is {positions}"):
        build(options, Silent())
    assert not options.out.exists()
