"""Engines of several targets: whose files are where, and what the manifest says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmc.codegen.package import Contents, Facts, TargetPart, cubin_file, cuda_part, known_bytes, write_engine
from llmc.codegen.weights import place_weights
from llmc.emulator.engine_twins import find_pairs
from llmc.ir.graph import Graph
from llmc.ir.ops.constant import Source
from llmc.ir.types import DType
from llmc.runtime.artifact.artifact import read_manifest
from llmc.runtime.artifact.kv_layout import KvGroup, KvLayout
from llmc.runtime.artifact.manifest import ArenaBytes, GenerationDefaults, Limits, ModelSummary, SpecialTokens
from llmc.runtime.errors import DiskFull

WEIGHTS = place_weights([Source("w", DType.F32, (64,))])
FACTS = Facts(
    {"llmc": "test"},
    ModelSummary("m", "M", "bf16", 64, 8, 8, 16),
    Limits(16, 2, 4),
    SpecialTokens(None, (), None, False),
    GenerationDefaults(),
)


class Zeros:
    def read(self, source: Source, rows: tuple[int, int] | None) -> np.ndarray:
        return np.zeros(64, np.float32)[slice(*(rows or (None,)))]


def part(name: str, arch: str, sources: dict[str, str]) -> TargetPart:
    def compile_kernels(given: Mapping[str, str]) -> dict[str, bytes]:
        return {symbol: f"{arch}:{text}".encode() for symbol, text in given.items()}

    return cuda_part(
        name,
        arch,
        ("tma",),
        KvLayout(32, (KvGroup(None, 64, 2, ()),)),
        ArenaBytes(0, 10, 20, 0),
        WEIGHTS,
        {"decode": "{}", "prefill": "{}"},
        [Graph("decode", (), (), ())],
        sources,
        {"device.cuh": "// device"},
        compile_kernels,
    )


def write(folder: Path, *parts: TargetPart) -> Path:
    write_engine(folder, Contents(FACTS, parts, WEIGHTS, {"report.json": "{}"}), Zeros(), lambda n: None)
    return folder


def test_targets_share_sources_and_targets_of_one_architecture_share_cubins(tmp_path: Path) -> None:
    both, one = {"norm": "a", "head": "b"}, {"norm": "a"}
    parts = [part("h100", "sm_90a", both), part("h200", "sm_90a", one), part("a100", "sm_80", one)]
    folder = write(tmp_path / "engine", *parts)
    manifest = read_manifest(folder)
    assert [(t.name, t.kind, t.kernels, t.plans) for t in manifest.targets] == [
        ("h100", "cuda", "kernels/sm_90a", "plans/h100"),
        ("h200", "cuda", "kernels/sm_90a", "plans/h200"),
        ("a100", "cuda", "kernels/sm_80", "plans/a100"),
    ]
    assert manifest.targets[0].memory.weights_bytes == 256 and manifest.targets[0].memory.arena.per_row == 20
    plans = {f"plans/{t}/{f}" for t in ("h100", "h200", "a100") for f in ("decode.json", "prefill.json", "graph.llmc")}
    kernels = {cubin_file("sm_90a", "norm"), cubin_file("sm_90a", "head"), cubin_file("sm_80", "norm")}
    sources = {f"kernels/cuda/src/{name}" for name in ("norm.cu", "head.cu", "device.cuh")}
    assert set(manifest.files) == {*plans, *kernels, *sources, "weights.safetensors", "report.json"}
    assert (folder / cubin_file("sm_80", "norm")).read_bytes() == b"sm_80:a"
    assert [pair.source.name for pair in find_pairs(folder, "sm_90a")] == ["head.cu", "norm.cu"]


def test_no_room_is_found_before_anything_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known by then: weights, plans and texts."""
    known = known_bytes(Contents(FACTS, [part("h100", "sm_90a", {})], WEIGHTS, {"report.json": "{é}"}))
    assert known == 256 + len("{}") * 2 + len("{é}".encode())
    compiled = replace(part("h100", "sm_90a", {}), write_kernels=lambda folder: (folder / "compiled").touch())
    for free, room in ((known - 1, False), (known, True)):
        monkeypatch.setattr("llmc.runtime.artifact.atomic_folder._free_bytes", lambda output, free=free: free)
        contents = Contents(FACTS, [compiled], WEIGHTS, {"report.json": "{é}"})
        if room:
            write_engine(tmp_path / "engine", contents, Zeros(), lambda n: None)
        else:
            with pytest.raises(DiskFull, match=f"engine: needs {known} bytes, {free} are free in "):
                write_engine(tmp_path / "engine", contents, Zeros(), lambda n: None)
            assert list(tmp_path.iterdir()) == []


def test_two_targets_cannot_differ_in_a_file_they_share(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"two targets differ in norm\.cu"):
        write(tmp_path / "engine", part("h100", "sm_90a", {"norm": "a"}), part("a100", "sm_80", {"norm": "other"}))
    assert not (tmp_path / "engine").exists()
