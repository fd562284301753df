"""ONNX Runtime GenAI's model builder, in its own environment, with its arguments.

It does not know transformers 5's rope_parameters of each type of layer (Gemma 3): they are given to it as it does.
"""

from __future__ import annotations

import runpy
from typing import Any


def older_rope(config: Any) -> Any:
    rope = getattr(config, "rope_parameters", None)
    if isinstance(rope, dict) and "full_attention" in rope:
        config.rope_theta = rope["full_attention"]["rope_theta"]
        config.rope_local_base_freq = rope["sliding_attention"]["rope_theta"]
        config.rope_parameters = {"rope_type": "default", "rope_theta": config.rope_theta}
    return config


def main() -> None:
    import transformers

    configs: Any = transformers.AutoConfig
    read = configs.from_pretrained
    configs.from_pretrained = lambda *args, **options: older_rope(read(*args, **options))
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")


if __name__ == "__main__":
    main()
