"""What a build says of itself: report.json, and report.html for people."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from e2e.commands import Commands
from e2e.engines import Engines, Silent

from llmc.codegen.cpu.measured_limits import MeasuredLimits
from llmc.codegen.cpu.target import TargetError, find_cpu
from llmc.codegen.roofline import Peaks
from llmc.compiler.build import BuildOptions, build
from llmc.compiler.commands.inspection import alike
from llmc.compiler.report_page import render_page
from llmc.runtime.artifact.artifact import read_manifest
from llmc.runtime.cpu.memory import usable_cores


@pytest.fixture(scope="session")
def plain(engines: Engines, speaking: Path) -> Path:
    return engines.engine(speaking)


def report(engine: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((engine / "report.json").read_text())
    return found


def test_every_launch_has_its_roofline(plain: Path) -> None:
    target = report(plain)["targets"]["cpu"]
    roof = target["roofline"]
    assert roof["predicted"] is True and roof["length"] == 127
    assert [p["batch"] for p in roof["points"]] == [1, 16]
    for point in roof["points"]:
        launched: dict[str, int] = {}
        for kernel in point["tpot"]["kernels"]:
            launched[kernel["op"]] = launched.get(kernel["op"], 0) + kernel["count"]
            assert kernel["floor_s"] is None and kernel["expected_s"] is None  # this CPU was not measured
        assert launched == target["entries"]["decode"]
    assert roof["kv_bytes_per_token"] == target["bytes"]["kv_per_token"]
    one, many = (p["tpot"]["kernels"] for p in roof["points"])
    for alone, together in zip(one, many, strict=True):
        assert together["matrix_flops"] == 16 * alone["matrix_flops"]
        if alone["op"] == "packed_linear":
            assert together["weight_bytes"] == alone["weight_bytes"] > 0


def test_the_page_needs_nothing_from_elsewhere(plain: Path) -> None:
    page = (plain / "report.html").read_text()
    assert "report.html" in read_manifest(plain).files
    assert not re.search(r"<script|<link|<img|src=|href=|@import|url\(|https?:", page)
    for text in ("speaking", "packed_linear", "paged_attention", "Kernels chosen", "fuse-gates", "Times are unknown"):
        assert text in page
    assert "expected, µs" not in page and "floor, µs" not in page  # columns of nothing


def test_a_phone_sees_what_each_figure_is(plain: Path) -> None:
    """On a narrow screen a row is a block, and column heads are gone: each figure names its own."""
    page = (plain / "report.html").read_text()
    assert '<meta name="viewport" content="width=device-width' in page and "overflow-x" not in page
    (roofline, *_) = re.findall(r'<table class="rows">.*?</table>', page, re.S)
    heads = re.findall(r"<th[^>]*>([^<]+)</th>", roofline)
    figures = re.findall(r'<td class="n"( data-of="([^"]*)")?>', roofline)
    assert figures and {name for _, name in figures} == set(heads) - {"kernel", "bytes"}


def test_the_choice_of_a_kernel_is_told_with_what_was_rejected(plain: Path) -> None:
    target = report(plain)["targets"]["cpu"]
    (choice,) = target["kernels"]
    assert choice["rejected"] and choice["of"] == "every linear"
    page = (plain / "report.html").read_text()
    for text in (choice["chosen"], choice["reason"], *(f"{k}: {v}" for k, v in choice["rejected"].items())):
        assert f"{text}" in page
    assert f"{len(choice['rejected'])} others" in page


def test_inspect_is_tables(plain: Path, llmc: Commands) -> None:
    ended = llmc.run("inspect", plain, COLUMNS="80")
    assert ended.code == 0 and ended.stderr == ""
    path, *lines = ended.stdout.splitlines()
    assert path == str(plain) and max(map(len, lines)) <= 80
    for text in ("packed_linear", "every linear", "what fused", "memory on cpu", "threads", "KV per token", "f32"):
        assert text in ended.stdout, text
    memory = read_manifest(plain).targets[0].memory
    scratch = memory.arena.total(512, 16, usable_cores())
    assert f"{scratch:,}" in ended.stdout and f"{memory.weights_bytes:,}" in ended.stdout


def test_refusals_in_layers_that_differ_by_number_are_one_row() -> None:
    places = {"model.layers.0.mlp": "x of layers.0.a", "model.layers.11.mlp": "x of layers.11.a", "lm_head": "x"}
    assert alike(places) == {("model.layers.*.mlp", "x of layers.*.a"): 2, ("lm_head", "x"): 1}


def test_measured_limits_give_floors(speaking: Path, tmp_path: Path) -> None:
    target = find_cpu("cpu")
    assert target is not None
    limits = tmp_path / "limits.json"
    peaks = Peaks(f32=2e11, bf16=3e11, s8=4e11)
    limits.write_text(MeasuredLimits(target.mcpu, 2, 16e9, peaks).to_json())
    engine = tmp_path / "engine"
    build(BuildOptions(str(speaking), engine, limits=limits), Silent())
    roof = report(engine)["targets"]["cpu"]["roofline"]
    assert roof["bandwidth"] == 16e9 and roof["largest_batch"] is None
    for kernel in roof["points"][0]["tpot"]["kernels"]:
        least = max(
            kernel["memory_bytes"] / 16e9,
            kernel["matrix_flops"] / {"": 1.0, "f32": 2e11, "bf16": 3e11}[kernel["matrix_unit"]],
            kernel["vector_flops"] / 2e11,
        )
        assert kernel["floor_s"] == pytest.approx(least)
    page = (engine / "report.html").read_text()
    assert "floor, µs" in page and "16 GB/s" in page and "Times are unknown" not in page


def test_limits_of_another_machine_are_refused_before_anything_is_built(speaking: Path, tmp_path: Path) -> None:
    limits = tmp_path / "limits.json"
    limits.write_text(MeasuredLimits("another", 2, 16e9, Peaks()).to_json())
    with pytest.raises(TargetError, match="measured on another, which is none of the targets: cpu"):
        build(BuildOptions(str(speaking), tmp_path / "engine", limits=limits), Silent())
    limits.write_text("no")
    with pytest.raises(TargetError, match="not what bench"):
        build(BuildOptions(str(speaking), tmp_path / "engine", limits=limits), Silent())
    assert not (tmp_path / "engine").exists()


def test_names_are_text_on_the_page(plain: Path) -> None:
    found = report(plain)
    found["model"]["name"] = "<script>alert(1)</script> & co"
    page = render_page(found)
    assert "<script" not in page and "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in page
