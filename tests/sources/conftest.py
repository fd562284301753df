"""A tiny model folder as transformers saves one, and the means to damage it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

WORDS = ["<unk>", "<s>", "</s>", "a", "b", "c", "ab", "<|end|>"]


def tiny_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(
        models.BPE(vocab={word: i for i, word in enumerate(WORDS)}, merges=[("a", "b")], unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "<|end|>"])
    return tokenizer


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config)
    torch.nn.Module.to(model, torch.bfloat16)
    model.eval()
    return model


@pytest.fixture
def folder(tmp_path: Path, model: LlamaForCausalLM) -> Path:
    """Two bf16 shards, a tokenizer, a chat template, a generation config."""
    path = tmp_path / "tiny"
    model.save_pretrained(path, max_shard_size="20KB")
    tiny_tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "unk_token": "<unk>",
                "chat_template": "{{ messages[0]['content'] }}",
            }
        )
    )
    (path / "generation_config.json").write_text(
        json.dumps({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [2, 7]})
    )
    (path / "README.md").write_text("---\nlicense: apache-2.0\n---\n# tiny\n")
    return path


@pytest.fixture
def edit_json(folder: Path) -> Callable[..., None]:
    """edit_json("config.json", key=value, gone=None): change keys of a JSON file of the folder."""

    def edit(name: str, **changes: Any) -> None:
        path = folder / name
        value = json.loads(path.read_text()) if path.exists() else {}
        value.update(changes)
        path.write_text(json.dumps({key: item for key, item in value.items() if item is not None}))

    return edit
