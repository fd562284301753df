"""GGUF files of HF modules, written as the converter of llama.cpp would."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.resolve import open_source

Tensors = dict[str, NDArray[np.float32]]
WORDS = ["<unk>", "<s>", "</s>", "<eot>", *(f"w{i}" for i in range(24)), "a", "b", "c", "ab"]


def llama_tensors(model: PreTrainedModel) -> Tensors:
    """GGUF tensors of a tied or untied Llama: q and k rows interleaved for llama.cpp's rope."""
    config = model.config
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
    names |= {"self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up"}
    names |= {"mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm"}
    names |= {"post_attention_layernorm": "ffn_norm"}
    state = {name: value.float().numpy() for name, value in model.state_dict().items()}
    out: Tensors = {"token_embd.weight": state["model.embed_tokens.weight"]}
    out["output_norm.weight"] = state["model.norm.weight"]
    if not config.tie_word_embeddings:
        out["output.weight"] = state["lm_head.weight"]
    for layer in range(config.num_hidden_layers):
        for hf, short in names.items():
            value = state[f"model.layers.{layer}.{hf}.weight"]
            if short in ("attn_q", "attn_k"):
                count = heads[short[-1]]
                halves = value.reshape(count, 2, value.shape[0] // count // 2, value.shape[1])
                value = halves.swapaxes(1, 2).reshape(value.shape)
            out[f"blk.{layer}.{short}.weight"] = value
    return out


def llama_metadata(model: PreTrainedModel, prefix: str = "llama") -> dict[str, Any]:
    config = model.config
    return {
        f"{prefix}.block_count": config.num_hidden_layers,
        f"{prefix}.context_length": config.max_position_embeddings,
        f"{prefix}.embedding_length": config.hidden_size,
        f"{prefix}.feed_forward_length": config.intermediate_size,
        f"{prefix}.attention.head_count": config.num_attention_heads,
        f"{prefix}.attention.head_count_kv": config.num_key_value_heads,
        f"{prefix}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{prefix}.rope.freq_base": 10000.0,
        f"{prefix}.rope.dimension_count": config.head_dim,
        f"{prefix}.vocab_size": config.vocab_size,
    }


def write_gguf(
    path: Path,
    arch: str,
    metadata: dict[str, Any],
    tensors: Tensors,
    raw: dict[str, tuple[NDArray[np.uint8], gguf.GGMLQuantizationType]] | None = None,
    special: Sequence[str] = ("bos", "eos", "eot"),
    tensors_of_a_part: int = 0,
) -> None:
    """Write float tensors, and `raw` ones that are blocks already, with a small BPE tokenizer; in parts where it is
    said how many tensors each has."""
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=tensors_of_a_part)
    writer.add_name("tiny")
    for key, value in metadata.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case _:
                writer.add_string(key, value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3, 3, *[1] * (len(WORDS) - 4)])
    writer.add_token_merges(["a b"])
    for token, name in enumerate(special, 1):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    writer.add_chat_template("{{ messages }}")
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor))
    for name, (blocks, kind) in (raw or {}).items():
        writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tiny_llama(**overrides: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    settings: dict[str, Any] = dict(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **overrides}))
    model.eval()
    return model


def meta(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def refusal(path: Path) -> str:
    with pytest.raises(SourceError) as caught:
        source = open_source(str(path))
        source.checkpoint(meta(source.config))
    assert "\n" not in str(caught.value)
    return str(caught.value)


GEMMA_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gemma_tensors(model: PreTrainedModel) -> Tensors:
    """GGUF tensors of a Gemma 2 or 3, whose norms are stored with the one that the module adds."""
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    for layer in range(model.config.num_hidden_layers):
        names |= {f"model.layers.{layer}.{hf}": f"blk.{layer}.{short}" for hf, short in GEMMA_NAMES.items()}
    state = {k.removesuffix(".weight"): v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    return {f"{names[k]}.weight": v.numpy() + (1 if "norm" in k else 0) for k, v in state.items()}


def as_read(path: Path) -> PreTrainedModel:
    """The module of a GGUF's config, filled with its tensors."""
    source = open_source(str(path))
    model: PreTrainedModel = AutoModelForCausalLM.from_config(source.config, attn_implementation="eager").eval()
    checkpoint = source.checkpoint(model)
    values = {name: torch.from_numpy(np.array(checkpoint[name].read_f32())) for name in checkpoint.names}
    assert not model.load_state_dict(values, strict=False).unexpected_keys
    return model


def logits(model: PreTrainedModel) -> NDArray[np.float32]:
    with torch.no_grad():
        out = model(input_ids=torch.arange(4, 44)[None] % 32, use_cache=False).logits
    return np.asarray(out[0].numpy(), np.float32)
