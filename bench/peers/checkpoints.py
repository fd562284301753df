"""One model's weights in the form that each program reads, all made of the same GGUF file in bf16; each made once."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.peers.environments import run

OPENVINO_FORMATS = {  # by bits; it stores no bf16, and computes in it
    16: ("--weight-format", "fp16"),
    8: ("--weight-format", "int8"),
    4: ("--weight-format", "int4", "--group-size", "64", "--sym", "--ratio", "1.0"),  # embedding and head in 8 bits
}


def hf_folder(model: Path, out: Path) -> Path:
    """A HuggingFace folder in bf16, with configuration keys that transformers 4 and 5 both read."""
    return _once(out, lambda part: _to_hf(model, part))


def openvino_folder(environment: Path, model: Path, bits: int, out: Path) -> Path:
    """What `optimum-cli export openvino` makes of a HuggingFace folder."""
    command = [str(environment / "bin" / "optimum-cli"), "export", "openvino", "-m", str(model)]
    command += ["--task", "text-generation-with-past", *OPENVINO_FORMATS[bits]]
    variables = {"HF_HUB_OFFLINE": "1", "PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
    return _once(out, lambda part: run("OpenVINO", [*command, str(part)], variables))


def onnx_folder(environment: Path, model: Path, bits: int, out: Path) -> Path:
    """What ONNX Runtime GenAI's builder makes of it, with logits of the last position alone, as it is fastest."""
    builder = str(Path(__file__).parent / "onnx_builder.py")
    command = [str(environment / "bin" / "python"), builder, "-i", str(model), "-p", f"int{bits}", "-e", "cpu"]

    def make(part: Path) -> None:
        with tempfile.TemporaryDirectory() as cache:
            last = ["-o", str(part), "-c", cache, "--extra_options", "prune_lm_head=true"]
            run("ONNX Runtime", [*command, *last], {"HF_HUB_OFFLINE": "1"})

    return _once(out, make)


def _once(out: Path, make: Callable[[Path], object]) -> Path:
    if not out.is_dir():
        part = out.with_name(f".{out.name}.{os.getpid()}")
        try:
            make(part)
            part.rename(out)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return out


def _to_hf(model: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(loaded).__name__]
    config.dtype = torch.bfloat16
    # What was loaded from GGUF counts as quantised, and cannot be saved: a plain model takes its weights.
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(loaded.state_dict())
    plain.tie_weights()
    plain.bfloat16().save_pretrained(out)
    AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name).save_pretrained(out)
    older_keys(out / "config.json")


def older_keys(path: Path) -> None:
    """`rope_parameters` and `dtype` as transformers 4 has them; a norm's epsilon without float32's rounding."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters", {})
    if "full_attention" in rope:
        config["rope_theta"] = rope["full_attention"]["rope_theta"]
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        if "_sliding_window_pattern" in config:
            config["sliding_window_pattern"] = config.pop("_sliding_window_pattern")
    else:
        config["rope_theta"] = rope.get("rope_theta", 10000.0)
    config["torch_dtype"] = config.pop("dtype", "bfloat16")
    config["rms_norm_eps"] = float(f"{config['rms_norm_eps']:.3g}")
    path.write_text(json.dumps(config, indent=2) + "\n")
