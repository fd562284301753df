import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer, LlamaForCausalLM

from llmc.compiler.sources.checkpoint import StoredDtype, StoredTensor
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.generation import GenerationDefaults
from llmc.compiler.sources.model_source import SourceFormat
from llmc.compiler.sources.resolve import open_source


def test_everything_of_a_folder_is_found(folder: Path) -> None:
    source = open_source(str(folder))
    assert source.format is SourceFormat.HF_FOLDER
    assert (source.name, source.licence, source.quantization) == ("tiny", "apache-2.0", None)
    assert source.config.num_hidden_layers == 2
    assert source.generation == GenerationDefaults(
        do_sample=True, temperature=0.6, top_p=0.9, bos=1, eos=(2, 7), pad=None
    )
    assert source.tokenizer is not None
    assert source.tokenizer.chat_template == "{{ messages[0]['content'] }}"
    assert source.tokenizer.num_tokens == 8
    assert not source.tokenizer.add_bos
    assert len(list(folder.glob("*.safetensors"))) > 1


def test_shards_read_back_bit_for_bit(folder: Path, model: LlamaForCausalLM) -> None:
    checkpoint = open_source(str(folder)).checkpoint(model)
    assert set(checkpoint.names) == set(model.state_dict())
    for name, expected in model.state_dict().items():
        tensor = checkpoint[name]
        assert isinstance(tensor, StoredTensor)
        assert tensor.dtype is StoredDtype.BF16
        bits = expected.view(torch.uint16).numpy()
        np.testing.assert_array_equal(tensor.read(), bits)
        np.testing.assert_array_equal(tensor.read((1, 5)), bits[1:5])
        np.testing.assert_array_equal(tensor.read_f32((1, 5)), expected.float().numpy()[1:5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_each_float_format_of_a_single_file(tmp_path: Path, folder: Path, dtype: torch.dtype) -> None:
    for shard in folder.glob("model*"):
        shard.unlink()
    values = torch.randn(6, 4).to(dtype)
    save_file({"w": values, "scalar": torch.tensor(2.5).to(dtype)}, folder / "model.safetensors")
    checkpoint = open_source(str(folder)).checkpoint(None)  # type: ignore[arg-type]
    np.testing.assert_array_equal(checkpoint["w"].read_f32(), values.float().numpy())
    assert checkpoint["w"].read_f32((2, 2)).shape == (0, 4)
    assert checkpoint["scalar"].read_f32() == np.float32(2.5)


def test_rows_outside_the_tensor_are_our_bug(folder: Path, model: LlamaForCausalLM) -> None:
    tensor = open_source(str(folder)).checkpoint(model)["lm_head.weight"]
    for rows in [(0, 33), (-1, 3), (5, 4)]:
        with pytest.raises(ValueError, match=r"lm_head\.weight"):
            tensor.read_f32(rows)


@pytest.mark.parametrize("add_bos", [False, True])
def test_the_tokenizer_is_the_one_transformers_runs(folder: Path, add_bos: bool) -> None:
    if add_bos:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
        )
        tokenizer.save(str(folder / "tokenizer.json"))
    files = open_source(str(folder)).tokenizer
    assert files is not None
    ours = Tokenizer.from_str(files.tokenizer_json)
    theirs = AutoTokenizer.from_pretrained(str(folder))
    for text in ["abc", "ab c <|end|> x", "", " a  b"]:
        assert ours.encode(text).ids == theirs(text)["input_ids"]
    assert files.add_bos is add_bos
    assert json.loads(files.tokenizer_config_json)["eos_token"] == "</s>"


@pytest.mark.parametrize("single", ["$A </s>", "<s> $A </s>", "<s> <|end|> $A"])
def test_special_tokens_other_than_a_first_bos_are_refused(folder: Path, single: str) -> None:
    """Transformers would put them around every prompt; an engine does not."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    specials = [(word, tokenizer.token_to_id(word)) for word in ("<s>", "</s>", "<|end|>")]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=specials)
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(SourceError, match="special tokens around a text"):
        open_source(str(folder))


def test_chat_template_file_wins_and_missing_tokenizer_is_none(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("from the file")
    tokenizer = open_source(str(folder)).tokenizer
    assert tokenizer is not None and tokenizer.chat_template == "from the file"
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink()
    assert open_source(str(folder)).tokenizer is None


def test_of_several_templates_the_default_one_and_that_for_tools_are_kept(
    folder: Path, edit_json: Callable[..., None]
) -> None:
    named = [{"name": name, "template": name.upper()} for name in ("tool_use", "rag", "default")]
    edit_json("tokenizer_config.json", chat_template=named)
    tokenizer = open_source(str(folder)).tokenizer
    assert tokenizer is not None and tokenizer.chat_template == "DEFAULT"
    kept = json.loads(tokenizer.tokenizer_config_json)["chat_template"]
    assert kept == [{"name": "tool_use", "template": "TOOL_USE"}]
    theirs = AutoTokenizer.from_pretrained(str(folder))
    messages = [{"role": "user", "content": "x"}]
    assert theirs.apply_chat_template(messages, tokenize=False) == "DEFAULT"
    assert theirs.apply_chat_template(messages, tools=[{"name": "f"}], tokenize=False) == "TOOL_USE"


def test_config_keys_that_transformers_ignores_are_listed(folder: Path, edit_json: Callable[..., None]) -> None:
    edit_json(
        "config.json",
        foo_scale=3.0,
        rope_scaling={"rope_type": "linear", "factor": 2.0},
        torch_dtype="bfloat16",
        auto_map={"AutoConfig": "x.Y"},
    )
    source = open_source(str(folder))
    # auto_map of a model type that transformers has itself is not run, hence listed
    assert source.config_file is not None
    assert [str(s) for s in source.config_file.unused] == [
        "auto_map",
        "foo_scale",
        "rope_parameters (rope_scaling counts)",
    ]
    assert source.config.rope_parameters["factor"] == 2.0  # translated, not ignored


def test_without_a_generation_config_the_model_config_speaks(folder: Path, edit_json: Callable[..., None]) -> None:
    (folder / "generation_config.json").unlink()
    edit_json("config.json", do_sample=True, top_k=7, eos_token_id=[2, 3])
    generation = open_source(str(folder)).generation
    assert (generation.do_sample, generation.top_k, generation.eos) == (True, 7, (2, 3))


def test_a_hub_id_is_the_folder_it_was_fetched_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def snapshot_download(hub_id: str, allow_patterns: list[str]) -> str:
        assert hub_id == "some-one/tiny"
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr("llmc.compiler.sources.hub.snapshot_download", snapshot_download)
    source = open_source("some-one/tiny")
    assert (source.name, source.path) == ("some-one/tiny", folder)
    small, everything = asked
    # first what is small; then exactly the shards that the index names, never a pickle
    assert not any("safetensors" in pattern and "*" not in pattern for pattern in small)
    assert {path.name for path in folder.glob("*.safetensors")} <= set(everything)
    assert not any(pattern.endswith((".bin", "*")) for pattern in everything)
