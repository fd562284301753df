"""`llmc inspect --profile`: marks around every kernel of both entries, read back as what those compute; its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from llmc.compiler.commands.profile_console import print_profile
from llmc.compiler.profile.marked_engine import Mark, mark_sources
from llmc.compiler.profile.measure import Node, Profile
from llmc.runtime.artifact.artifact import open_artifact
from tests.e2e.commands import Commands
from tests.e2e.engines import Engines
from tests.e2e.refusals import refused

GENERATED = """\
inline void helper() {
  w.sync();
}
// ---- prefill
void prefill(void* args, const Worker& w) {
  const StepView& s = *(const StepView*)args;
  // rows model.layers.0.input_layernorm -> bf16[T, 576]
  rows_1(s.token_rows<float>(0), w);
  w.sync();
  // packed_linear lm_head -> f32[R, 64]
  linear<Bf16>(Weights{s.weight<void>(8), nullptr, nullptr, 64, 32}, s.y<void>(0), s.in.num_rows, E1{x}, w);
  w.sync();
  // sample  -> i32[R]
  finish_rows(s, w);
}

// ---- decode
void decode(void* args, const Worker& w) {
  const StepView& s = *(const StepView*)args;
  // packed_linear model.layers.11.mlp + model.layers.11.mlp.down_proj -> f32[T, 96]
  linear<Quant<I4, 32>>(Weights{s.w<void>(8), s.w<void>(9), nullptr, 96, 64}, s.x<void>(0), s.in.num_tokens, E{}, w);
  w.sync();
}
"""


def test_marks_of_every_kernel() -> None:
    _, marks = mark_sources(GENERATED)
    assert marks == [
        Mark("prefill", "rows", "input_layernorm", 0, 0, True),
        Mark("prefill", "packed_linear", "lm_head", 0, 64 * 32, False),
        Mark("prefill", "sample", "", 0, 0, True),
        Mark("decode", "packed_linear", "mlp + mlp.down_proj", 0, 96 * 64, True),
    ]


def test_each_kernel_is_marked_before_and_after_its_barrier() -> None:
    text, _ = mark_sources(GENERATED)
    lines = [line.strip() for line in text.splitlines() if "mark_" in line or line.strip() == "w.sync();"]
    assert lines == [
        "w.sync();",  # of another function: left alone
        "mark_begin(w);",
        *("mark_busy(w, 0);", "w.sync();", "mark_waited(w, 0);"),
        *("mark_busy(w, 1);", "w.sync();", "mark_waited(w, 1);"),
        "mark_busy(w, 2);",  # the last kernel of a step has no barrier of its own
        "mark_begin(w);",
        *("mark_busy(w, 3);", "w.sync();", "mark_waited(w, 3);"),
    ]


def test_the_source_itself_is_kept() -> None:
    text, _ = mark_sources(GENERATED)
    assert [line for line in text.splitlines() if "mark" not in line] == GENERATED.splitlines()


def test_kernels_without_a_barrier_between_them_are_marked_each() -> None:
    text, marks = mark_sources(
        GENERATED.replace("w);\n  w.sync();\n  // packed_linear lm", "w);\n  // packed_linear lm")
    )
    lines = [line.strip() for line in text.splitlines() if "mark_busy(w, 0)" in line or "mark_waited(w, 0)" in line]
    assert lines == ["mark_busy(w, 0);"] and len(marks) == 4


def test_the_profile_has_every_launch_and_all_bytes(llmc: Commands, engines: Engines, speaking: Path) -> None:
    folder = engines.engine(speaking)
    ended = llmc.run("inspect", folder, "--profile", "--batch", "2", "--length", "8", "--json")
    assert ended.code == 0, ended.stderr
    (step,) = json.loads(ended.stdout)["steps"]
    artifact = open_artifact(folder, device="cpu")
    launches = json.loads((folder / artifact.target.plans / "decode.json").read_text())["launches"]
    assert sum(node["calls"] for node in step["nodes"]) == len(launches)
    spans = artifact.weights.spans
    read = [name for launch in launches if launch["op"] == "packed_linear" for name in launch["weights"]]
    assert sum(n["weight_bytes"] for n in step["nodes"]) == sum(spans[name][1] - spans[name][0] for name in read)
    (attention,) = (n for n in step["nodes"] if n["kernel"] == "paged_attention")
    tokens = 2 * (8 + step["steps"] // 2)
    assert attention["kv_bytes"] == tokens * sum(group.bytes_per_token for group in artifact.target.kv.groups)
    busy = [n["busy_us"] for n in step["nodes"] if n["kernel"] == "packed_linear"]
    assert min(busy) > 0 and step["read_bytes_per_s"] > 0


def test_the_profile_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = (
        Node("packed_linear", "mlp.down_proj", 30, 90.0, 10.0, 8_000_000, 0, 16_000_000, 80.0),
        Node("rows", "post_attention_layernorm", 30, 9.0, 1.0, 0, 0, 0, 0.0),
    )
    print_profile(Console(width=160), Profile("decode", 1, 128, 50, 2, 200.0, 90.0, 1e11, nodes))
    table = capsys.readouterr().out
    assert "plain read 100.0 GB/s" in table and "step 200 us (5000 tokens a second)" in table
    (linear,) = (line.split() for line in table.splitlines() if "down_proj" in line)
    assert linear == ["packed_linear", "mlp.down_proj", "30", "90.0", "10.0", "80.0", "80%", "80.0", "GB/s"]


def test_what_is_no_engine_is_refused(llmc: Commands, speaking: Path) -> None:
    refused(llmc.run("inspect", speaking, "--profile"), "manifest.json")
    assert "--kernels does not go with --profile" in llmc.run("inspect", speaking, "--profile", "--kernels").stderr
