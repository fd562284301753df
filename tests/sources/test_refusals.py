"""Bad input: one line of SourceError that names the thing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.resolve import open_source

Edit = Callable[..., None]


def refusal(model: str | Path) -> str:
    with pytest.raises(SourceError) as caught:
        open_source(str(model))
    message = str(caught.value)
    assert "\n" not in message
    return message


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


def weight_map(folder: Path) -> dict[str, str]:
    index: dict[str, Any] = json.loads((folder / "model.safetensors.index.json").read_text())
    stated: dict[str, str] = index["weight_map"]
    return stated


def test_the_folder_is_fine_before_it_is_damaged(folder: Path) -> None:
    open_source(str(folder))


def test_missing_paths(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "nothing" / "here")
    assert "no such file or folder" in refusal("nothing.gguf")
    assert "config.json is missing" in refusal(tmp_path)
    (tmp_path / "x.bin").write_bytes(b"x")
    assert "neither a model folder nor a .gguf file" in refusal(tmp_path / "x.bin")


def test_missing_shard(folder: Path) -> None:
    gone = shards(folder)[1]
    gone.unlink()
    assert f"{gone.name}: missing shard" in refusal(folder)


@pytest.mark.parametrize("cut", [1, 8, 4000])
def test_truncated_shard(folder: Path, cut: int) -> None:
    shard = shards(folder)[0]
    shard.write_bytes(shard.read_bytes()[:-cut])
    assert f"{shard.name}: truncated or damaged" in refusal(folder)


def test_empty_and_garbage_shard(folder: Path) -> None:
    shard = shards(folder)[0]
    for content in (b"", b"\xff" * 100):
        shard.write_bytes(content)
        assert f"{shard.name}: truncated or damaged" in refusal(folder)


@pytest.mark.parametrize("shard", ["../x.safetensors", "/tmp/x.safetensors", "a/../../x.safetensors"])
def test_shard_outside_the_folder(folder: Path, edit_json: Edit, shard: str) -> None:
    edit_json("model.safetensors.index.json", weight_map={**weight_map(folder), "lm_head.weight": shard})
    assert f"{shard!r} of lm_head.weight leaves the model's folder" in refusal(folder)


def test_index_naming_an_absent_shard_or_tensor(folder: Path, edit_json: Edit) -> None:
    stated = weight_map(folder)
    edit_json("model.safetensors.index.json", weight_map={**stated, "x": "model-9.safetensors"})
    assert "model-9.safetensors: missing shard" in refusal(folder)
    edit_json("model.safetensors.index.json", weight_map={**stated, "x": shards(folder)[0].name})
    assert "no tensor x" in refusal(folder)


def test_a_tensor_in_two_shards(folder: Path) -> None:
    first, second = shards(folder)[:2]
    name, value = next(iter(load_file(first).items()))
    save_file({**load_file(second), name: value}, second)
    assert f"tensor {name} is stored twice" in refusal(folder)


def test_weights_of_another_type_refuse_when_read(folder: Path) -> None:
    for path in folder.glob("model*"):
        path.unlink()
    save_file({"w": torch.zeros(2, dtype=torch.int8)}, folder / "model.safetensors")
    checkpoint = open_source(str(folder)).checkpoint(None)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"tensor w is stored as I8"):
        checkpoint["w"].read_f32()


def test_pickle_and_no_weights(folder: Path) -> None:
    for path in folder.glob("model*"):
        path.unlink()
    assert "no weights" in refusal(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80")
    assert "pytorch_model.bin: pickle checkpoints can run code" in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("content", [b'{"a": ', b"[1]", b"\xff\xfe{", b"[" * 100_000, b""])
def test_malformed_json(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    assert f"{name}: " in refusal(folder)


def test_an_infinity_that_nobody_reads(folder: Path, edit_json: Edit) -> None:
    """As the time_step_limit of models with state spaces: not JSON, and written by transformers."""
    edit_json("config.json", time_step_limit=[0.0, float("inf")])
    open_source(str(folder))


def test_malformed_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": 3}')
    assert "the tokenizer cannot be loaded" in refusal(folder)


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"model_type": None}, "no model_type"),
    ({"model_type": "warp_drive"}, "does not know model_type 'warp_drive'"),
    ({"model_type": "warp_drive", "auto_map": {"AutoModelForCausalLM": "m.X"}}, "needs remote code"),
    ({"model_type": "vit", "architectures": ["ViTModel"]}, "'vit' has no causal LM"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
    ({"num_attention_heads": 5}, "not a multiple of the number of attention heads"),
    ({"hidden_size": "big"}, "hidden_size"),
    *(({"max_position_embeddings": n}, f"max_position_embeddings is {n}, expected 2 or more") for n in (-1, 0, 1)),
    ({"rms_norm_eps": float("nan")}, "config.json: NaN is not a JSON number"),
    *(({"num_hidden_layers": n}, f"num_hidden_layers is {n}, expected 1 to 10000 layers") for n in (-1, 0, 10**12)),
    ({"num_attention_heads": 0}, "num_attention_heads is 0, which transformers cannot use: integer modulo by zero"),
    (
        {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 10**9},
        "num_hidden_layers is 1000000000,",  # whose config class makes a list of that length
    ),
    ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 10**9}, "n_layer is 1000000000,"),
    (
        {"model_type": "gemma3", "architectures": None, "text_config": {"num_hidden_layers": 10**9}},
        "num_hidden_layers is 1000000000,",
    ),
]


@pytest.mark.parametrize(("changes", "expected"), CONFIGS, ids=[e for _, e in CONFIGS])
def test_configs(folder: Path, edit_json: Edit, changes: dict[str, Any], expected: str) -> None:
    edit_json("config.json", **changes)
    assert expected in refusal(folder)


def test_an_architecture_is_known_in_any_case(folder: Path, edit_json: Edit) -> None:
    """MPT's checkpoints say MPTForCausalLM, and transformers' class is MptForCausalLM."""
    edit_json("config.json", architectures=["LLaMAForCausalLM"])
    open_source(str(folder))


def test_adapters(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    assert "PEFT adapter" in refusal(folder)


def test_folders_that_are_no_model_s_are_called_what_they_are(tmp_path: Path) -> None:
    """An engine, and an adapter as PEFT saves it: without a config."""
    for name, what in (("manifest.json", "an engine already"), ("adapter_config.json", "a PEFT adapter")):
        folder = tmp_path / what
        folder.mkdir()
        (folder / name).write_text("{}")
        assert f"{folder}: {what}" in refusal(folder)


GENERATION: list[tuple[dict[str, Any], str]] = [
    ({"num_beams": 4}, "num_beams = 4"),
    ({"suppress_tokens": [3]}, "suppress_tokens = [3]"),
    ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size = 3"),
    ({"stop_strings": [3]}, "stop_strings = [3] is neither a text nor a list of texts"),
    ({"typical_p": 0.95}, "typical_p = 0.95"),
    ({"min_new_tokens": -1}, "min_new_tokens = -1"),
    ({"num_beams": 2, "length_penalty": 2.0}, "num_beams = 2"),
    ({"presence_penalty": "1.5"}, "presence_penalty = '1.5'"),
    ({"temperature": -1}, "temperature = -1"),
    ({"top_p": 1.5}, "top_p = 1.5"),
    ({"eos_token_id": "two"}, "token id 'two'"),
]


@pytest.mark.parametrize(("changes", "expected"), GENERATION, ids=[e for _, e in GENERATION])
def test_generation_settings(folder: Path, edit_json: Edit, changes: dict[str, Any], expected: str) -> None:
    edit_json("generation_config.json", **changes)
    assert expected in refusal(folder)


def test_neutral_generation_settings_pass(folder: Path, edit_json: Edit) -> None:
    edit_json("generation_config.json", num_beams=1, suppress_tokens=[], use_cache=True, max_length=20)
    open_source(str(folder))


def test_hub_id_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert "no network to fetch it" in refusal("some-one/some-model")
