"""Bad input on the command line: exit code 2, one line on stderr that names the thing (after those of stages begun),
nothing on stdout, no traceback, and nothing left at the output or beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.e2e.commands import Commands, Ended
from tests.e2e.refusals import MAIN, refused


def edit(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    value = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))


def shards(folder: Path) -> list[Path]:
    found = sorted(folder.glob("model-*.safetensors"))
    assert len(found) >= 2
    return found


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Rewrite the checkpoint as one file of changed tensors."""
    tensors: dict[str, torch.Tensor] = {}
    for shard in shards(folder):
        tensors.update(load_file(shard))
        shard.unlink()
    (folder / "model.safetensors.index.json").unlink()
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def set_rope(folder: Path) -> None:
    edit(folder / "config.json", rope_parameters={"rope_type": "warp", "rope_theta": 1e4})


def rope_by_length(folder: Path) -> None:
    edit(folder / "config.json", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})


def truncate(folder: Path) -> None:
    shard = shards(folder)[1]
    shard.write_bytes(shard.read_bytes()[:-100])


def shard_outside(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    weight_map = {**json.loads(index.read_text())["weight_map"], "lm_head.weight": "../outside.safetensors"}
    edit(index, weight_map=weight_map)


def quantised(folder: Path) -> None:
    edit(folder / "config.json", quantization_config={"quant_method": "aqlm", "nbits": 16})


def remote_code(folder: Path) -> None:
    edit(folder / "config.json", model_type="mine", auto_map={"AutoModelForCausalLM": "modeling.Mine"})
    (folder / "modeling.py").write_text("raise SystemExit('this must not run')")


def missing_tensor(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.__delitem__("model.layers.1.mlp.up_proj.weight"))


def extra_tensor(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({"model.layers.1.mlp.extra.weight": torch.zeros(2)}))


def another_shape(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({"model.norm.weight": torch.zeros(63)}))


def integers(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({"model.norm.weight": torch.zeros(64, dtype=torch.int8)}))


def float8(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({"model.norm.weight": torch.zeros(64).to(torch.float8_e4m3fn)}))


def bias_without_setting(folder: Path) -> None:
    edit(folder / "config.json", attention_bias=False)


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def unknown_activation(folder: Path) -> None:
    edit(folder / "config.json", hidden_act="wobble")


def bad_generation(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"num_beams": 4}')


def generation_settings(**settings: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / "generation_config.json").write_text(json.dumps(settings))


def bad_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


DAMAGES: list[tuple[Callable[[Path], object], tuple[str, ...]]] = [
    (lambda f: shards(f)[1].unlink(), ("model-00002", "missing shard")),
    (truncate, ("model-00002", "truncated")),
    (shard_outside, ("../outside.safetensors", "leaves the model's folder")),
    (lambda f: edit(f / "config.json", max_position_embeddings=2**31), ("positions are 32-bit numbers", "2147483647")),
    (set_rope, ("rope_type 'warp' is unknown",)),
    (rope_by_length, ("rope_type 'dynamic'", "not supported yet")),
    (missing_tensor, ("model.layers.1.mlp.up_proj.weight", "not in the checkpoint")),
    (extra_tensor, ("model.layers.1.mlp.extra.weight", "belongs to no parameter")),
    (bias_without_setting, ("bias belongs to no parameter",)),
    (another_shape, ("model.norm.weight", "[63]", "[64]")),
    (integers, ("model.norm.weight", "I8")),
    (float8, ("model.norm.weight", "F8_E4M3")),
    (quantised, ("config.json: quantization_config: aqlm", "not supported")),
    (remote_code, ("remote code",)),
    (no_config, ("config.json is missing",)),
    (unknown_activation, ("wobble",)),
    (bad_generation, ("num_beams",)),
    (generation_settings(do_sample=True, temperature=float("inf")), ("temperature = inf",)),
    (generation_settings(do_sample=True, temperature=1e9), ("temperature", "1e+09")),
    (generation_settings(do_sample=True, top_p=0), ("top_p", "got 0")),
    (generation_settings(top_k=2.5), ("top_k = 2.5",)),
    (generation_settings(top_k=10**12), ("top_k", "1000000000000")),
    (generation_settings(max_new_tokens="x"), ("max_new_tokens = 'x'",)),
    (generation_settings(do_sample="no"), ("do_sample = 'no'",)),
    (bad_tokenizer, ("tokenizer",)),
]


@pytest.mark.parametrize(("damage", "expected"), DAMAGES, ids=[f"{e[0]}" for _, e in DAMAGES])
def test_models(damage: Callable[[Path], object], expected: tuple[str, ...], damaged: Path, llmc: Commands) -> None:
    damage(damaged)
    out = damaged.parent / "out"
    refused(llmc.run("build", damaged, "-o", out), *expected)
    assert sorted(p.name for p in damaged.parent.iterdir()) == ["model"]


AT_ONCE: list[tuple[list[str], tuple[str, ...]]] = [
    (["--target", "h1000"], ("unknown target", "'h1000'", "h100")),
    (["--target", "cpu,cpu"], ("a target is named twice",)),
    (["--target", "pentium"], ("'pentium'", "x86-64-v3")),
    (["--target", "h100", "--dtype", "int8"], ("no CUDA kernel multiplies in int8", "bf16, f16")),
    (["--dtype", "f16"], ("no CPU kernel multiplies in f16", "use f32, bf16, int8")),
    (["--passes", "fuse-everything"], ("fuse-everything", "fuse-gates")),
    (["--passes", "choose-formats{scheme=int5}"], ("int5",)),
    (["--passes", "choose-formats{colour=red}"], ("colour",)),
    (["--passes", "choose-formats{scheme=int8_int8g48}"], ("activation group 48", "a multiple of 64")),
    (["--passes", "choose-formats{scheme="], ("--passes",)),
    (["--dump-ir", "/dev/null/x"], ("/dev/null/x", "another --dump-ir")),
    (["-o", "/proc/nothing/engine"], ("/proc/nothing/engine: cannot be made in /proc", "another -o")),
]

LATER: list[tuple[list[str], tuple[str, ...]]] = [
    (["--max-seq-len", "129"], ("129", "128")),
    (["--passes", "lower-linears{layout=rows}"], ("not in panels, which CPU kernels read",)),
    (["--target", "h100", "--passes", "lower-linears{layout=panels}"], ("not in rows, which CUDA kernels read",)),
    (["--at", "*.qkv_proj=int8"], ("*.qkv_proj=int8: no linear has such a name", "self_attn.q_proj")),
    (
        ["--passes", 'choose-formats{others=[At{module="head", scheme=int8}]}'],
        ("head=int8: no linear has such a name", "lm_head"),
    ),
    (["--passes", "sample-rows{num_valid_tokens=999999}"], ("num_valid_tokens is 999999, expected 1..",)),
]


@pytest.mark.parametrize(("options", "expected"), [*AT_ONCE, *LATER], ids=[" ".join(o) for o, _ in (*AT_ONCE, *LATER)])
def test_options(options: list[str], expected: tuple[str, ...], speaking: Path, llmc: Commands, tmp_path: Path) -> None:
    ended = llmc.run("build", speaking, "-o", tmp_path / "out", *options)
    refused(ended, *expected, at_once=(options, expected) in AT_ONCE)
    assert list(tmp_path.iterdir()) == []


def test_options_that_click_refuses(speaking: Path, llmc: Commands, tmp_path: Path) -> None:
    """Usage errors are click's: its exit code is 2 as well."""
    for options in (["--dtype", "fp3"], ["--max-batch", "0"], ["--max-seq-len", "x"], ["--no-such-option"]):
        ended = llmc.run("build", speaking, "-o", tmp_path / "out", *options)
        assert ended.code == 2 and ended.stdout == "" and "Traceback" not in ended.stderr
        assert "Error: " in ended.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_no_toolchain(speaking: Path, llmc: Commands, tmp_path: Path) -> None:
    refused(
        llmc.run("build", speaking, "-o", tmp_path / "out", CXX="/nonexistent/c++"),
        "/nonexistent/c++",
        "ziglang",
        at_once=True,
    )
    broken = tmp_path / "bin" / "clang++"
    broken.parent.mkdir()
    broken.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "clang version 18.1.0" || { echo "error: no" >&2; exit 1; }\n'
    )
    broken.chmod(0o755)
    refused(llmc.run("build", speaking, "-o", tmp_path / "out", CXX=str(broken)), "clang++", "error: no")
    assert [p.name for p in tmp_path.iterdir()] == ["bin"]


def test_in_a_fresh_process(damaged: Path, tmp_path: Path) -> None:
    """Where transformers is imported by the command itself, and says what it thinks of the config."""
    set_rope(damaged)
    command = [sys.executable, "-c", "from llmc.compiler.commands.cli import main; main()"]
    command += ["build", str(damaged), "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    refused(Ended(done.returncode, done.stdout, done.stderr), "rope_type 'warp'")


def test_no_ziglang(speaking: Path, tmp_path: Path) -> None:
    hide = f"import sys; sys.modules['ziglang'] = None; {MAIN}"
    command = [sys.executable, "-c", hide, "build", str(speaking), "-o", str(tmp_path / "out")]
    env = {k: v for k, v in os.environ.items() if k != "CXX"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    refused(Ended(done.returncode, done.stdout, done.stderr), "ziglang")
    assert list(tmp_path.iterdir()) == []


def test_no_torch(speaking: Path, tmp_path: Path) -> None:
    """What a user who installed the runtime alone meets."""
    hide = f"import sys; sys.modules['torch'] = None; {MAIN}"
    for args in (["build", speaking, "-o", tmp_path / "out"], ["verify", tmp_path / "e", speaking]):
        command = [sys.executable, "-c", hide, *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True)
        refused(Ended(done.returncode, done.stdout, done.stderr), "llmc[build]")


def test_paths_that_hold_no_model(llmc: Commands, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\x03\0\0\0garbage")
    out = tmp_path / "out"
    refused(llmc.run("build", tmp_path / "nowhere" / "x", "-o", out), "no such file or folder", at_once=True)
    refused(llmc.run("build", tmp_path / "empty", "-o", out), "config.json is missing")
    refused(llmc.run("build", tmp_path / "notes.txt", "-o", out), "notes.txt", at_once=True)
    refused(llmc.run("build", tmp_path / "broken.gguf", "-o", out), "broken.gguf")
    missing = llmc.run(
        "build", "some-one/some-model", "-o", out, HF_HUB_OFFLINE="1", HF_HUB_CACHE=str(tmp_path / "empty")
    )
    refused(missing, "some-one/some-model", "no network")
    assert not out.exists()


def test_outputs_that_are_no_engine(speaking: Path, llmc: Commands, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for name in ("folder", "file", "link"):
        refused(llmc.run("build", speaking, "-o", tmp_path / name), name, at_once=True)
    refused(llmc.run("build", speaking, "-o", tmp_path / "file" / "below"), "file", at_once=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder", "link"]
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "mine"
