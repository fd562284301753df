"""GGUF files written here from HF modules, as llama.cpp's converter would, come back as those modules."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    PreTrainedModel,
)
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from llmc.compiler.sources.demo import fetch_demo
from llmc.compiler.sources.model_source import SourceFormat
from llmc.compiler.sources.resolve import open_source
from llmc.compiler.verify.texts import PASSAGES
from tests.sources.gguf_files import (
    as_read,
    gemma_tensors,
    llama_metadata,
    llama_tensors,
    logits,
    meta,
    refusal,
    tiny_llama,
    write_gguf,
)

F32_1E5 = float(np.float32(1e-5))


@pytest.mark.parametrize("tied", [False, True])
def test_a_llama_comes_back_as_it_was(tmp_path: Path, tied: bool) -> None:
    model = tiny_llama(tie_word_embeddings=tied)
    path = tmp_path / "m.gguf"
    write_gguf(path, "llama", llama_metadata(model), llama_tensors(model))
    source = open_source(str(path))
    assert (source.name, source.format, source.quantization) == ("m", SourceFormat.GGUF, None)
    assert source.config.rms_norm_eps == F32_1E5  # the file's float32, not a prettier decimal
    assert source.config.tie_word_embeddings is tied
    assert source.generation.eos == (2, 3)  # eos and eot
    assert not source.generation.do_sample
    assert source.tokenizer is not None and source.tokenizer.chat_template == "{{ messages }}"
    checkpoint = source.checkpoint(meta(source.config))
    expected = {k: v for k, v in model.state_dict().items() if not (tied and k == "lm_head.weight")}
    assert set(checkpoint.names) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(checkpoint[name].read_f32(), value.numpy())
        np.testing.assert_array_equal(checkpoint[name].read_f32((3, 7)), value.numpy()[3:7])


def test_special_tokens_are_the_files_and_not_the_config_classs(tmp_path: Path) -> None:
    """LlamaConfig() has bos 1 and eos 2; of this file only </s> is known for an end, by its name."""
    model = tiny_llama()
    write_gguf(tmp_path / "m.gguf", "llama", llama_metadata(model), llama_tensors(model), special=())
    source = open_source(str(tmp_path / "m.gguf"))
    assert (source.generation.bos, source.generation.eos, source.generation.pad) == (None, (2,), None)
    assert source.tokenizer is not None and (source.tokenizer.bos, source.tokenizer.eos) == (None, None)


def test_gemma_norms_lose_their_one(tmp_path: Path) -> None:
    config = Gemma3TextConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=16,
        max_position_embeddings=64,
    )
    model = Gemma3ForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    state = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
    tensors = gemma_tensors(model)
    metadata = llama_metadata(model, "gemma3")
    del metadata["gemma3.rope.dimension_count"]
    metadata |= {"gemma3.attention.key_length": 8, "gemma3.attention.value_length": 8}
    metadata |= {"gemma3.attention.sliding_window": 16, "gemma3.rope.freq_base": 1e6}
    write_gguf(tmp_path / "g.gguf", "gemma3", metadata, tensors)
    source = open_source(str(tmp_path / "g.gguf"))
    checkpoint = source.checkpoint(meta(source.config))
    assert set(checkpoint.names) == set(state)
    for name, value in state.items():
        np.testing.assert_allclose(checkpoint[name].read_f32(), value.numpy(), atol=1e-6)


METADATA: list[tuple[dict[str, Any], str]] = [
    ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, "llama.rope.scaling.type"),
    ({"llama.attention.key_length": 16}, "llama.attention.key_length = 16"),
    ({"llama.final_logit_softcapping": 30.0}, "llama.final_logit_softcapping = 30.0"),
    ({"llama.attention.sliding_window": 8}, "llama.attention.sliding_window = 8"),
    ({"llama.some.new.key": 1}, "llama.some.new.key = 1"),
    ({"llama.expert_count": 8}, "llama.expert_count"),
    ({"general.sampling.mirostat": 2}, "general.sampling.mirostat"),
]


@pytest.mark.parametrize(("changes", "expected"), METADATA, ids=[e for _, e in METADATA])
def test_metadata_that_transformers_drops_is_refused(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    model = tiny_llama()
    write_gguf(tmp_path / "m.gguf", "llama", llama_metadata(model) | changes, llama_tensors(model))
    assert expected in refusal(tmp_path / "m.gguf")


def test_agreeing_metadata_and_sampling_are_honoured(tmp_path: Path) -> None:
    model = tiny_llama()
    extra = {"llama.rope.scaling.type": "none", "llama.attention.key_length": 8}
    extra |= {"general.sampling.temp": 0.5, "general.sampling.top_k": 20, "general.license": "mit"}
    write_gguf(tmp_path / "m.gguf", "llama", llama_metadata(model) | extra, llama_tensors(model))
    source = open_source(str(tmp_path / "m.gguf"))
    assert source.generation.do_sample and source.generation.temperature == 0.5
    assert (source.generation.top_k, source.licence) == (20, "mit")


def llama3_factors(config: LlamaConfig) -> NDArray[np.float32]:
    """rope_freqs.weight as llama.cpp's converter computes it of the config."""
    rope: dict[str, Any] = dict(config.rope_parameters or {})
    dim = config.head_dim or 0
    wavelengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] / wavelengths
    smooth = (turns - low) / (high - low)
    between = 1 / ((1 - smooth) / rope["factor"] + smooth)
    factors = np.where(turns > high, 1.0, np.where(turns < low, rope["factor"], between))
    assert len(set(factors)) > 3  # some of each of the three
    return factors.astype(np.float32)


def test_rope_factors_are_frequencies(tmp_path: Path) -> None:
    """Llama 3.1 and later: transformers' llama3 rope is the oracle."""
    rope = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
    rope["original_max_position_embeddings"] = 64
    model = tiny_llama(hidden_size=64, head_dim=16, rope_parameters=rope, rms_norm_eps=F32_1E5)
    for name, parameter in model.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            torch.nn.init.normal_(parameter, std=0.5)  # attention that looks at positions
    tensors = llama_tensors(model) | {"rope_freqs.weight": llama3_factors(model.config)}
    write_gguf(tmp_path / "m.gguf", "llama", llama_metadata(model), tensors)
    np.testing.assert_allclose(logits(as_read(tmp_path / "m.gguf")), logits(model), atol=1e-5)
    del tensors["rope_freqs.weight"]
    write_gguf(tmp_path / "plain.gguf", "llama", llama_metadata(model), tensors)
    assert np.abs(logits(as_read(tmp_path / "plain.gguf")) - logits(model)).max() > 0.01


@pytest.mark.parametrize(("family", "layers", "scalar"), [("gemma2", 46, 12), ("gemma2", 2, 8), ("gemma3", 62, 12)])
def test_gemmas_attention_is_scaled_by_its_size(tmp_path: Path, family: str, layers: int, scalar: int) -> None:
    """The 27B's divide by the width of a head's share of the hidden state, the others by the head's own."""
    sizes: dict[str, Any] = dict(
        vocab_size=32, hidden_size=24, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1
    )
    sizes |= dict(head_dim=8, num_hidden_layers=layers, sliding_window=16, max_position_embeddings=64)
    make = Gemma2Config if family == "gemma2" else Gemma3TextConfig
    torch.manual_seed(0)
    config = make(**sizes, query_pre_attn_scalar=scalar)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    tensors = gemma_tensors(model)
    metadata = llama_metadata(model, family)
    del metadata[f"{family}.rope.dimension_count"]
    metadata |= {f"{family}.attention.key_length": 8, f"{family}.attention.value_length": 8}
    metadata |= {f"{family}.attention.sliding_window": 16, f"{family}.attention.layer_norm_rms_epsilon": 1e-6}
    metadata[f"{family}.rope.freq_base"] = 1e6 if family == "gemma3" else 1e4
    write_gguf(tmp_path / "m.gguf", family, metadata, tensors)
    read = as_read(tmp_path / "m.gguf")
    assert read.config.query_pre_attn_scalar == scalar
    np.testing.assert_allclose(logits(read), logits(model), atol=1e-4)


TENSORS: list[tuple[str, int, str]] = [
    ("rope_freqs.weight", 3, "tensor rope_freqs.weight is [1.0, 1.0, 1.0], expected 4 positive factors"),
    ("rope_factors_long.weight", 4, "tensor rope_factors_long.weight: rope frequencies that change with the text"),
    ("blk.0.attn_q_norm.weight", 8, "tensor blk.0.attn_q_norm.weight has no place"),
]


@pytest.mark.parametrize(("name", "length", "expected"), TENSORS, ids=[name for name, *_ in TENSORS])
def test_a_tensor_that_has_no_place_is_refused(tmp_path: Path, name: str, length: int, expected: str) -> None:
    model = tiny_llama()
    tensors = llama_tensors(model) | {name: np.ones(length, np.float32)}
    write_gguf(tmp_path / "m.gguf", "llama", llama_metadata(model), tensors)
    message = refusal(tmp_path / "m.gguf")
    assert expected in message


def test_the_demo_model_agrees_with_transformers() -> None:
    """SmolLM2: config, tokenizer and every tensor's name and shape."""
    path = fetch_demo("smollm2")
    source = open_source(str(path))
    assert (source.licence, source.quantization) == ("apache-2.0", "Q4_1 x210, Q8_0 x1")
    model = meta(source.config)
    checkpoint = source.checkpoint(model)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    del shapes["lm_head.weight"]  # tied
    assert {name: checkpoint[name].shape for name in checkpoint.names} == shapes
    theirs = TokenizersBackend.from_pretrained(str(path.parent), gguf_file=path.name)
    assert source.tokenizer is not None
    ours = Tokenizer.from_str(source.tokenizer.tokenizer_json)
    assert ours.get_vocab() == theirs.get_vocab()
    for passage in PASSAGES:
        ids = ours.encode(passage, add_special_tokens=False).ids
        assert ids == theirs.encode(passage, add_special_tokens=False)
        assert ours.decode(ids) == passage
    assert source.tokenizer.chat_template == theirs.chat_template
