"""Folders of a tiny Llama whose linears are written in a published format, and the model that they stand for."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from tests.sources.quantised.written import Form, Linear, Writer
from tests.tiny_models import config_of, eager_model

# in=192 in groups of 128: the last is half one
SHAPES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 1, "head_dim": 16}


@dataclass(frozen=True)
class Written:
    """`model`: transformers' own, in float32, with the weights that the folder stands for."""

    folder: Path
    model: PreTrainedModel
    linears: Mapping[str, Linear]


def config(family: str = "llama", **overrides: Any) -> PretrainedConfig:
    return config_of(family, **{**SHAPES, "mlp_bias": False, **overrides})


def write(
    folder: Path,
    form: Form,
    skip: Callable[[str], bool] = lambda path: path == "lm_head",
    more: Mapping[str, torch.Tensor] | None = None,
    settings: Mapping[str, Any] | None = None,
    writers: Mapping[str, Writer] | None = None,
    **overrides: Any,
) -> Written:
    """`skip`: linears that stay floats. `more`: further tensors. `settings`: instead of the form's. `writers`: of
    linears that are not in the form, by the last part of their path."""
    model = eager_model(config(**overrides))
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    metadata: dict[str, Any] = {"format": "pt"}
    linears: dict[str, Linear] = {}
    for path, module in model.named_modules():
        if not isinstance(module, nn.Linear) or skip(path):
            continue
        generator = torch.Generator().manual_seed(zlib.crc32(path.encode()))
        writer = (writers or {}).get(path.rpartition(".")[2], form.write)
        linear = writer((module.out_features, module.in_features), generator)
        linears[path] = linear
        with torch.no_grad():
            module.weight.copy_(linear.weight)
        del kept[f"{path}.weight"]
        kept |= {f"{path}.{leaf}": tensor for leaf, tensor in linear.tensors.items()}
        if linear.made is not None:
            metadata[f"{path}.weight"] = json.dumps(linear.made)
    if model.config.tie_word_embeddings:
        kept.pop("lm_head.weight", None)
    folder.mkdir(parents=True)
    stated = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    stated["quantization_config"] = dict(settings or form.settings)
    (folder / "config.json").write_text(json.dumps(stated))
    tensors = {name: tensor.contiguous() for name, tensor in {**kept, **(more or {})}.items()}
    save_file(tensors, folder / "model.safetensors", metadata)
    return Written(folder, model, linears)
