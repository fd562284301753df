"""Which target runs, and what a machine without a GPU, its driver or cuda-python is told. In processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmc.runtime.artifact.manifest import TargetEntry
from tests.runtime.engine_folders import MakeEngine, target

LOAD = """
import sys
from llmc.runtime import Engine, EngineError
{before}
try:
    with Engine.load({folder!r}, device={device!r}) as engine:
        print(engine.artifact.target.name, len(engine.generate([[1, 2]], max_tokens=2)[0].token_ids))
        print(*engine.artifact.passed_over)
except EngineError as error:
    print(type(error).__name__, error)
print(sorted(name for name in sys.modules if name.split(".")[0] == "cuda"))
print("libcuda" in open("/proc/self/maps").read(), "nvrtc" in open("/proc/self/maps").read())
"""


def load(folder: Path, device: str | None = None, before: str = "") -> list[str]:
    """Lines that the process prints; the last two: modules of cuda-python, and whether libcuda and NVRTC are mapped."""
    script = LOAD.format(folder=str(folder), device=device, before=before)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def h100(**changes: Any) -> TargetEntry:
    return target(kind="cuda", name="h100", arch="sm_90a", kernels="kernels/sm_90a", plans="plans/h100", **changes)


@pytest.fixture
def without_driver() -> str:
    """cuda-python is there, and says as it does where no libcuda.so.1 is."""
    pytest.importorskip("cuda.bindings")
    return (
        "from llmc.runtime.cuda import driver\n"
        "def missing(*_): raise RuntimeError('Failed to dlopen libcuda.so.1')\n"
        "import cuda.bindings.driver as cu; cu.cuInit = missing\n"
    )


def test_a_cpu_target_touches_nothing_of_cuda(make_engine: MakeEngine) -> None:
    lines = load(make_engine())
    assert lines == ["cpu 2", "", "[]", "False False"]
    mixed = make_engine("mixed", targets=(h100(), target()))
    assert load(mixed, device="cpu") == ["cpu 2", "", "[]", "False False"]


def test_without_cuda_python_a_cpu_target_runs_and_a_cuda_target_says_what_to_install(make_engine: MakeEngine) -> None:
    block = "sys.modules['cuda'] = None"
    reason = (
        "built for h100 (sm_90a): needs an NVIDIA GPU and cuda-python, which is not installed: "
        "pip install 'llmc[cuda]'; `llmc run ENGINE --emulate` runs it without one"
    )
    mixed = make_engine("mixed", targets=(target(), h100()))
    assert load(mixed, before=block)[:2] == ["cpu 2", reason]
    alone = make_engine("alone", targets=(h100(),))
    assert load(alone, before=block)[0] == f"MachineMismatch {alone}: {reason}"
    assert load(mixed, "cuda", block)[0] == f"MachineMismatch {mixed}: {reason}"


def test_without_a_driver_a_cuda_target_mentions_the_emulator(make_engine: MakeEngine, without_driver: str) -> None:
    alone = make_engine("alone", targets=(h100(),))
    (alone / "weights.safetensors").unlink()  # the refusal comes before any file but the manifest is looked at
    text = load(alone, before=without_driver)[0]
    assert text.startswith(
        f"MachineMismatch {alone}: built for h100 (sm_90a): needs an NVIDIA GPU, and this machine has"
    )
    assert "--emulate" in text


def test_with_a_driver_but_no_gpu(make_engine: MakeEngine, without_driver: str) -> None:
    before = without_driver + "def cuInit(flags): return (cu.CUresult.CUDA_ERROR_NO_DEVICE,)\ncu.cuInit = cuInit\n"
    before += "cu.cuGetErrorString = lambda code: (cu.CUresult.CUDA_SUCCESS, b'no CUDA-capable device is detected')"
    text = load(make_engine("alone", targets=(h100(),)), before=before)[0]
    assert "CUDA finds none here (cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected)" in text, text
