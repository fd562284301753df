"""Model folders of any size without the memory for them: shards of repeated random bf16 values."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

_PATTERN = 1 << 19  # values


def write_llama(folder: Path, shard_bytes: int, **settings: Any) -> int:
    """Write config and sharded safetensors of a Llama; returns the bytes of its tensors."""
    config = LlamaConfig(**settings)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tied = set(model.all_tied_weights_keys)
    tensors = [(name, tuple(value.shape)) for name, value in model.state_dict().items() if name not in tied]
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    pattern = _pattern()
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    size = 0
    for name, shape in tensors:
        if shards[-1] and size + 2 * math.prod(shape) > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append((name, shape))
        size += 2 * math.prod(shape)
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_shard(folder / file, shard, pattern)
        weight_map.update({name: file for name, _ in shard})
    total: int = sum(2 * math.prod(shape) for _, shape in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def _pattern() -> bytes:
    values = np.random.default_rng(0).normal(0, 0.02, _PATTERN).astype(np.float32)
    return (values.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()


def _write_shard(path: Path, tensors: list[tuple[str, tuple[int, ...]]], pattern: bytes) -> None:
    header: dict[str, Any] = {}
    at = 0
    for name, shape in tensors:
        end = at + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        while at > 0:
            file.write(pattern[: min(at, len(pattern))])
            at -= len(pattern)
