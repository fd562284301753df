"""What a model is called, by rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmc.compiler.sources.model_name import folder_title, gguf_stem, gguf_title


@pytest.mark.parametrize(
    ("file", "general_name", "title"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Smollm2 135M 8k Lc100K Mix1 Ep2", "SmolLM2-135M-Instruct"),
        ("gemma-3-270m-q4_k_m.gguf", "Gemma 3 270m", "gemma-3-270m"),
        ("Qwen3-0.6B-Q8_0.gguf", None, "Qwen3-0.6B"),
        ("Llama-3.2-1B-Instruct-f16.gguf", None, "Llama-3.2-1B-Instruct"),
        ("Mixtral-8x7B-v0.1-IQ2_XXS.gguf", None, "Mixtral-8x7B-v0.1"),
        ("gpt-oss-20b-MXFP4.gguf", None, "gpt-oss-20b"),
        ("Big-70B-Q4_K_M-00001-of-00003.gguf", None, "Big-70B"),
        ("tiny.gguf", None, "tiny"),
        ("Q4.gguf", "x", "Q4"),
        ("model.gguf", "Given Name", "Given Name"),
        ("ggml-model-Q4_K_M.gguf", " Given Name ", "Given Name"),
        ("ggml-model-f32.gguf", None, "folder"),
        ("model.gguf", 7, "folder"),
    ],
)
def test_gguf_files(file: str, general_name: object, title: str) -> None:
    assert gguf_title(Path("/somewhere/folder") / file, general_name) == title


@pytest.mark.parametrize(
    ("folder", "title"),
    [
        ("Qwen3-0.6B", "Qwen3-0.6B"),
        ("Qwen3-0.6B/model", "Qwen3-0.6B"),
        ("hub/models--HuggingFaceTB--SmolLM2-135M--x/snapshots/0123abc", "HuggingFaceTB/SmolLM2-135M--x"),
        ("hub/models--gpt2/snapshots/0123abc", "gpt2"),
        ("a.b", "a.b"),
    ],
)
def test_folders(folder: str, title: str, tmp_path: Path) -> None:
    path = tmp_path / folder
    path.mkdir(parents=True)
    assert folder_title(path) == title
    assert folder_title(path / ".." / path.name) == title


def test_parts_are_of_one_stem() -> None:
    assert gguf_stem(Path("a/Big-70B-Q4_K_M-00001-of-00003.gguf")) == "Big-70B-Q4_K_M"
    assert gguf_stem(Path("Qwen3-0.6B.Q8_0.gguf")) == "Qwen3-0.6B.Q8_0"
