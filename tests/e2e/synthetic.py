"""Model folders of any size without the memory for them: shards of repeated random bytes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

_PATTERN = 1 << 19  # values
_GROUP = 128
_BYTES = {"BF16": 2, "F16": 2, "I32": 4}


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    dtype: str = "BF16"

    @property
    def num_bytes(self) -> int:
        return _BYTES[self.dtype] * math.prod(self.shape)


def write_llama(folder: Path, shard_bytes: int, gptq: bool = False, **settings: Any) -> int:
    """Write config and sharded safetensors of a Llama; returns the bytes of its tensors. `gptq`: linears but the head
    in GPTQ's 4 bits with zero points, in groups of 128."""
    config = LlamaConfig(**settings)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tied = set(model.all_tied_weights_keys)
    tensors = [_Tensor(name, tuple(value.shape)) for name, value in model.state_dict().items() if name not in tied]
    if gptq:
        stated = {"quant_method": "gptq", "bits": 4, "group_size": _GROUP, "sym": False, "desc_act": False}
        config.quantization_config = stated
        tensors = [part for tensor in tensors for part in _gptq(tensor)]
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    pattern = _pattern()
    shards: list[list[_Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.num_bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.num_bytes
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_shard(folder / file, shard, pattern)
        weight_map.update({tensor.name: file for tensor in shard})
    total = sum(tensor.num_bytes for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def _gptq(tensor: _Tensor) -> list[_Tensor]:
    if not tensor.name.endswith("_proj.weight"):
        return [tensor]
    path, (n, k) = tensor.name.removesuffix(".weight"), tensor.shape
    groups = k // _GROUP
    return [
        _Tensor(f"{path}.qweight", (k // 8, n), "I32"),
        _Tensor(f"{path}.qzeros", (groups, n // 8), "I32"),
        _Tensor(f"{path}.scales", (groups, n), "F16"),
    ]


def _pattern() -> bytes:
    """As bf16: normal, of about 0.02; as f16: of about 1."""
    values = np.random.default_rng(0).normal(0, 0.02, _PATTERN).astype(np.float32)
    return (values.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()


def _write_shard(path: Path, tensors: list[_Tensor], pattern: bytes) -> None:
    header: dict[str, Any] = {}
    at = 0
    for tensor in tensors:
        end = at + tensor.num_bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        while at > 0:
            file.write(pattern[: min(at, len(pattern))])
            at -= len(pattern)
