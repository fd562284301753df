"""`--emulate`: the command line runs a CUDA engine on a machine without a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmc.codegen.cuda.target.gpus import GPUS
from llmc.compiler.commands.cli import main
from llmc.emulator.__main__ import main as emulator_main
from llmc.emulator.build import BuildError, Driver, build_driver
from llmc.emulator.cache import cache_dir, found
from llmc.emulator.devices import parse_device
from llmc.emulator.engine_twins import find_pairs, install_twins
from tests.cuda.device import toy_engine

PROMPT = "5:2"
IDS = [ord(c) - ord("!") for c in PROMPT]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = {"tokenizer.json": toy_engine.tokenizer_json(), "tokenizer_config.json": "{}"}
    folder = tmp_path_factory.mktemp("emulate") / "toy"
    return toy_engine.write(folder, toy_engine.Model.random(), toy_engine.cubins(), texts=texts)


def llmc(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from llmc.compiler.commands.cli import main; main()", *map(str, arguments)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("LLMC_EMU") and k != "LD_LIBRARY_PATH"}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=600)


def test_run_answers(engine: Path) -> None:
    asked = ("run", engine, "--raw", "--prompt", PROMPT, "--max-tokens", "6", "--temperature", "0", "--quiet")
    done = llmc(*asked, "--emulate")
    assert done.returncode == 0, done.stderr
    assert done.stdout == toy_engine.text_of(toy_engine.Model.random().answer(IDS, 6)) + "\n"
    assert "emulating an NVIDIA H100" in done.stderr and "figure of speed is the emulator's" in done.stderr
    refused = llmc(*asked)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1 and "--emulate" in refused.stderr, refused.stderr


def test_verify_is_run_again_with_the_same_arguments(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def execv(program: str, arguments: list[str]) -> None:
        started.append(arguments)
        raise SystemExit

    monkeypatch.setattr("os.execv", execv)
    CliRunner().invoke(main, ["verify", str(engine), "some/model", "--json", "--emulate-gpu", "h200"])
    ((_, *emulator),) = started
    assert emulator[:7] == ["-m", "llmc.emulator", "--device", GPUS["h200"].device, "--arch", "sm_90a", str(engine)]
    command = emulator[8:]
    assert emulator[7] == "--" and command[0] == sys.executable
    assert command[3:] == ["verify", "--json", "--device=cuda", "--", str(engine), "some/model"]


def test_every_option_is_given_again(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that may be repeated, and values that look like options, too."""
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda program, arguments: started.append(arguments))
    asked = ["--prompt=-x", "--file=-", "--max-tokens=3", "--top-p=0.5", "--stop=a", "--stop=-b c", "--quiet"]
    CliRunner().invoke(main, ["run", str(engine), *asked, "--emulate"])
    again = started[0][started[0].index("--") + 1 :]
    assert again[3:] == ["run", *asked, "--device=cuda", "--", str(engine)]


def test_the_kernels_are_those_that_the_gpu_runs(engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an engine for several: an RTX 4090 runs what was built for the A100."""
    ada, blackwell = (parse_device(GPUS[name].device) for name in ("rtx4090", "b200"))
    assert ada.runs("sm_80") and ada.runs("sm_89") and not ada.runs("sm_90a")
    assert not blackwell.runs("sm_90a") and not blackwell.runs("x")
    archs = ("sm_90a", "sm_80")
    asked: list[list[str]] = []

    def install(_: Path, archs: list[str], *rest: object) -> Path:
        asked.append(archs)
        return tmp_path

    monkeypatch.setattr("llmc.emulator.__main__.install_twins", install)
    monkeypatch.setattr("llmc.emulator.__main__.build_driver", lambda **_: Driver(tmp_path, tmp_path))
    for name in ("rtx4090", "h100", "a100", "b200"):
        arguments = ["--device", GPUS[name].device, *(word for arch in archs for word in ("--arch", arch)), str(engine)]
        assert emulator_main([*arguments, "--", "no-such-command"]) == 2
    assert asked == [["sm_80"], ["sm_90a"], ["sm_80"], ["sm_90a"]]  # the last: for the runtime to refuse


def test_a_gpu_that_nobody_knows_is_refused(engine: Path) -> None:
    done = llmc("run", engine, "--raw", "-p", PROMPT, "--emulate-gpu", "h1000")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "h1000 is no GPU that is emulated; those that are: a100, " in done.stderr


@pytest.mark.parametrize("damage", ["text", "nothing", "head", "half", "source"])
def test_a_damaged_engine_is_refused_in_one_line(engine: Path, tmp_path: Path, damage: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(engine, copy)
    cubin = copy / "kernels/sm_90a/toy.cubin"
    source = copy / "kernels/cuda/src/toy.cu"
    whole = cubin.read_bytes()
    match damage:
        case "text":
            cubin.write_bytes(b"not a cubin")
        case "nothing" | "head" | "half":
            cubin.write_bytes(whole[: {"nothing": 0, "head": 20, "half": len(whole) // 2}[damage]])
        case "source":
            source.write_bytes(b"\xff\xfe")
    at_fault = source if damage == "source" else cubin
    with pytest.raises(BuildError, match=rf"{at_fault.name}: .*build the engine again") as caught:
        install_twins(copy, ["sm_90a"], False)
    assert "\n" not in str(caught.value)


def test_a_cache_that_cannot_be_written_is_named(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    cache.touch()
    monkeypatch.setenv("LLMC_CACHE", str(cache))
    assert emulator_main(["--arch", "sm_90a", str(engine), "--", "true"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"llmc.emulator: {cache}/emulator") and said.count("\n") == 1, said
    assert "Not a directory; set LLMC_CACHE to a folder that can be written" in said


def test_ctrl_c_ends_a_compilation_quietly(
    engine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**_: object) -> Driver:
        raise KeyboardInterrupt

    monkeypatch.setattr("llmc.emulator.__main__.build_driver", interrupted)
    assert emulator_main(["--arch", "sm_90a", str(engine), "--", "true"]) == 130
    assert capsys.readouterr().err == ""


def test_another_gpu_is_refused_by_the_runtime(engine: Path) -> None:
    done = llmc("run", engine, "--raw", "-p", PROMPT, "--emulate-gpu", "a100")
    assert done.returncode == 2
    assert "built for h100 (sm_90a), the GPU here is an NVIDIA A100" in done.stderr, done.stderr


def test_an_engine_without_cuda_is_not_emulated(engine: Path, tmp_path: Path) -> None:
    cpu = toy_engine.target(kind="cpu", name="x86-64-v3", arch="x86_64")
    folder = toy_engine.write(tmp_path / "cpu", toy_engine.Model.random(), {}, targets=(cpu,))
    done = llmc("run", folder, "-p", "x", "--emulate")
    assert done.returncode == 2 and "only CUDA targets are emulated" in done.stderr, done.stderr


def test_twins_are_found_by_what_cubins_hold(engine: Path, tmp_path: Path) -> None:
    folder = install_twins(engine, ["sm_90a"], False)
    assert install_twins(engine, ["sm_90a"], False) == folder
    assert len(list(folder.glob("*.so"))) == 3
    with pytest.raises(BuildError, match="no cubins for sm_80"):
        find_pairs(engine, "sm_80")
    copy = tmp_path / "copy"
    (copy / "kernels/sm_90a").mkdir(parents=True)
    (copy / "kernels/sm_90a/lonely.cubin").write_bytes(b"")
    with pytest.raises(BuildError, match=r"its source .*lonely\.cu is missing"):
        find_pairs(copy, "sm_90a")


def test_a_damaged_cache_is_mended(engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A twin that was cut off ended the run by a signal, without a word; one that is gone was not found."""
    folder, driver = install_twins(engine, ["sm_90a"], False), build_driver().folder.parent
    twins = [link.resolve() for link in sorted(folder.iterdir())]
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path))
    shutil.copytree(driver, cache_dir() / driver.name)
    (cache_dir() / "twins").mkdir()
    for twin in twins:
        shutil.copy(twin, cache_dir() / "twins")
    again = install_twins(engine, ["sm_90a"], False)
    cut, gone, misled = sorted(again.iterdir())
    cut.resolve().write_bytes(cut.read_bytes()[:4096])
    gone.resolve().unlink()
    misled.unlink()
    misled.symlink_to(cut.resolve())
    done = llmc("run", engine, "--raw", "-p", PROMPT, "--max-tokens", "6", "--temperature", "0", "--quiet", "--emulate")
    assert done.returncode == 0, done.stderr
    assert done.stdout == toy_engine.text_of(toy_engine.Model.random().answer(IDS, 6)) + "\n"
    assert found(cut.resolve()) and found(gone.resolve()) and not misled.samefile(cut)


@pytest.mark.parametrize("text", ["", "h100", "name=x;major=9", GPUS["h100"].device + ";cores=7"])
def test_a_device_that_says_too_little_is_refused(engine: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert emulator_main(["--device", text, "--arch", "sm_90a", str(engine), "--", "true"]) == 2
    said = capsys.readouterr().err
    assert "cores unknown" in said if "cores" in text else "memory_bytes, l2_bytes" in said
    assert "expected name=...;major=..." in said and said.count("\n") == 1


def test_the_command_runs_with_the_driver(engine: Path) -> None:
    emulator = [sys.executable, "-m", "llmc.emulator", "--arch", "sm_90a"]
    script = (
        "import ctypes, os; print(hasattr(ctypes.CDLL('libcuda.so.1'), 'llmcEmuReport'), os.environ['LLMC_EMU_CHECK'])"
    )
    done = subprocess.run(
        [*emulator, "--check", engine, "--", sys.executable, "-c", script], capture_output=True, text=True
    )
    assert done.stdout == "True race\n", done.stderr
    done = subprocess.run([*emulator, engine, "--", "no-such-command"], capture_output=True, text=True)
    assert done.returncode == 2 and "no-such-command: No such file" in done.stderr
    done = subprocess.run([*emulator, engine], capture_output=True, text=True)
    assert done.returncode == 2 and "no command" in done.stderr


def test_the_cache_may_have_a_relative_path_and_move(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(text: str, *_: object, **__: object) -> Path:
        path = cache_dir() / "twins" / f"{len(text)}.so"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    monkeypatch.setattr("llmc.emulator.engine_twins.build_twin", build)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLMC_CACHE", "cache")
    folder = install_twins(engine, ["sm_90a"], False)
    assert folder.is_absolute() and all(link.is_file() for link in folder.iterdir())
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    moved = tmp_path / "elsewhere" / folder.relative_to(tmp_path / "cache")
    assert len(list(moved.iterdir())) == 3 and all(link.is_file() for link in moved.iterdir())
