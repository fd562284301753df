"""The emulated driver under unmodified cuda-python, in processes of their own; and that nobody else gets
it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import decode_step
import driver_sources
import pytest
import subprocesses
from catalog import for_target

from llmc.codegen.cuda.target.capabilities import TARGETS
from llmc.codegen.cuda.target.nvrtc import TEMPLATES, compile_cubin
from llmc.emulator import pairs
from llmc.emulator.build import HostCompiler, build_twin
from llmc.emulator.devices import H100

HERE = Path(__file__).parent
PROGRAMS = ("driver_program.py", "driver_graphs.py", "driver_refusals.py")


def checks(program: str) -> list[str]:
    """The names in its list: importing it would take the real driver."""
    listed = re.search(r"^CHECKS = \[(.*?)\]", (HERE / program).read_text(), re.S | re.M)
    assert listed
    return re.findall(r"\w+", listed[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("driver")
    subprocesses.build_source(driver_sources.SOURCE, "driver_program", path, "sm_90a", False)
    subprocesses.build_source(driver_sources.SOURCE, "driver_program", path, "sm_90a", True)
    shared = compile_cubin(driver_sources.WITH_STATIC_SHARED, "sm_90a").cubin
    (path / "static_shared.cubin").write_bytes(shared)
    for checked in (False, True):
        twin = build_twin(driver_sources.TWIN_OF_STATIC_SHARED, [TEMPLATES], checked=checked)
        pairs.install(shared, twin, path / "twins", checked=checked)
    (path / "for_sm_80.cubin").write_bytes(compile_cubin(driver_sources.SOURCE, "sm_80").cubin)
    return path


@cache
def _problems(folder: Path, program: str, checked: bool) -> dict[str, str]:
    devices = [H100.with_memory(1 << 30)] * 2
    done = subprocesses.run(program, folder=folder, checked=checked, devices=devices)
    assert done.returncode == 0, done.stderr
    return {r["check"]: r["problem"] for r in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("checked", [False, True], ids=["fast", "checked"])
@pytest.mark.parametrize(("program", "check"), [(p, c) for p in PROGRAMS for c in checks(p)])
def test_driver(folder: Path, program: str, check: str, checked: bool) -> None:
    assert not (problem := _problems(folder, program, checked)[check]), problem


def test_parameters_of_every_cubin_match_its_twin(tmp_path: Path) -> None:
    """KPARAM_INFO of the cubin against sizeof on the CPU; and a twin with another signature is refused."""
    kernels = for_target(TARGETS["sm_90a"])
    subprocesses.build_pairs(kernels, tmp_path)
    done = subprocesses.run("load_all.py", folder=tmp_path)
    assert done.stdout.strip() == f"loaded {len(kernels)}", done.stdout + done.stderr

    wrong = tmp_path / "wrong"
    wrong.mkdir()
    text = '#include "device.cuh"\nLLMC_KERNEL(32, 1) k(float* p, TYPE x) { *p = x; }\nLLMC_EXPORT(k)\n'
    cubin = compile_cubin(text.replace("TYPE", "int"), "sm_90a").cubin
    (wrong / "k.cubin").write_bytes(cubin)
    twin = build_twin(text.replace("TYPE", "double"), [TEMPLATES], checked=False)
    pairs.install(cubin, twin, wrong / "twins", checked=False)
    assert "parameter sizes" in subprocesses.run("load_all.py", folder=wrong).stdout


def test_the_fake_is_found_only_when_asked_for() -> None:
    """Without LD_LIBRARY_PATH no process of this environment sees the emulator's libcuda."""
    script = (
        "import ctypes\ntry: lib = ctypes.CDLL('libcuda.so.1')\nexcept OSError: print('none')\n"
        "else: print('fake' if hasattr(lib, 'llmcEmuReport') else 'real')"
    )
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True
        ).stdout.strip()
        != "fake"
    )


NEWER = """#include <cstring>
extern "C" int cuInit(unsigned) { return 1234; }
extern "C" int cuGetProcAddress_v2(const char* name, void** out, int, unsigned long long, void*) {
  *out = std::strcmp(name, "cuInit") ? nullptr : reinterpret_cast<void*>(&cuInit);
  return 0;
}
"""


def test_a_code_that_cuda_python_does_not_know_is_named(tmp_path: Path) -> None:
    """Of a driver newer than it: cuda-python itself raises KeyError."""
    (tmp_path / "newer.cpp").write_text(NEWER)
    flags = ["-shared", "-fPIC", str(tmp_path / "newer.cpp"), "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run([*HostCompiler.default().command, *flags], check=True)
    script = "from llmc.runtime.cuda.driver.gpu import NoGpu, find_gpu\n"
    script += "try: find_gpu()\nexcept NoGpu as error: print(error)\n"
    env = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert "CUDA finds none here (cuInit: CUDA_ERROR 1234: this cuda-bindings (" in done.stdout, done.stderr


@pytest.mark.parametrize("schedule", ["forward", "random:5"])
def test_decode_step_as_one_graph(tmp_path: Path, schedule: str) -> None:
    """A step of SmolLM2-135M's shapes: at least 200 nodes, equal to numpy within what bf16 storage allows."""
    subprocesses.build_pairs(decode_step.KERNELS, tmp_path)
    done = subprocesses.run("decode_step.py", "3", folder=tmp_path, schedule=schedule)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    print(result)
    assert result["nodes"] >= 200 and result["finite"]
    # Sums in another order flip roundings of the bf16 residual stream: some ulps of its magnitude, layer
    # after layer.
    assert (
        result["max_error"] <= 8 * 2**-8 * result["max_logit"] and result["mean_error"] <= 2**-8 * result["max_logit"]
    )
