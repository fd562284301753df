"""Models that cannot be captured: one line that names what and where."""

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaModel, LlamaRotaryEmbedding

from llmc.compiler.capture.capture import import_program
from llmc.compiler.capture.errors import CaptureError
from llmc.compiler.capture.export import Exported, export, meta_model
from llmc.compiler.capture.parameters import Parameters
from llmc.ir.ops.constant import Source
from llmc.ir.types import DType

Change = Callable[[Any, Tensor], Tensor]


def refusal(model: PreTrainedModel) -> str:
    with pytest.raises(CaptureError) as caught:
        exported: Exported = export(model)
        exprs = {k: Source(k, DType.F32, tuple(v.shape)) for k, v in model.state_dict().items()}
        import_program(exported, Parameters(exprs, (), ()))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_more_layers_than_the_checkpoint_could_fill(oracle: ModuleType) -> None:
    """Found while the module is built, not after 9,999 layers of it."""
    config = oracle.config_of("llama", num_hidden_layers=9999)
    message = r"a llama of more than 576 parameters \(num_hidden_layers is 9999\), the checkpoint has 20 tensors"
    with pytest.raises(CaptureError, match=message):
        meta_model(config, num_tensors=20)


def test_modules_are_not_counted_against_a_checkpoint_that_fills_them(oracle: ModuleType) -> None:
    """Nor is what is built afterwards."""
    few = meta_model(oracle.config_of("llama", num_hidden_layers=1))
    assert len(meta_model(few.config, num_tensors=len(few.state_dict())).state_dict()) == len(few.state_dict())
    assert len(meta_model(oracle.config_of("llama", num_hidden_layers=70)).state_dict()) > 576


@pytest.mark.parametrize("size", ["vocab_size", "hidden_size", "intermediate_size"])
def test_sizes_without_elements_are_refused_without_a_warning(
    size: str, oracle: ModuleType, recwarn: pytest.WarningsRecorder
) -> None:
    with pytest.raises(CaptureError, match=r"has no elements: a size in config.json is 0"):
        meta_model(oracle.config_of("llama", num_hidden_layers=1, pad_token_id=None, **{size: 0}))
    assert not recwarn.list


@pytest.mark.parametrize("rope_type", ["foo", "dynamic", "longrope"])
def test_rope_types(rope_type: str, oracle: ModuleType) -> None:
    config = oracle.config_of("llama", num_hidden_layers=1)
    config.rope_parameters = {"rope_type": rope_type, "rope_theta": 1e4}
    with pytest.raises(CaptureError, match=f"rope_type '{rope_type}'"):
        meta_model(config)


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("bloom", "BloomForCausalLM takes no position_ids"),
        ("xglm", "XGLMForCausalLM: no attention went through"),
        ("falcon", "falcon: has its own table of attention implementations"),
        ("recurrent_gemma", "RecurrentGemmaForCausalLM: no attention went through"),
    ],
)
def test_models_with_their_own_ways(model_type: str, expected: str) -> None:
    settings = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 64}
    if model_type == "xglm":
        settings = {"d_model": 64, "attention_heads": 4, "num_layers": 1, "vocab_size": 64, "ffn_dim": 64}
    if model_type == "recurrent_gemma":
        settings |= {"lru_width": 64, "head_dim": 16, "num_key_value_heads": 1}
    config = AutoConfig.for_model(model_type, **settings)
    if model_type == "falcon":
        with pytest.raises(CaptureError, match=expected):
            meta_model(config)
    else:
        assert expected in refusal(meta_model(config))


def in_the_mlp(code: Change) -> tuple[type, str, Any]:
    return LlamaMLP, "forward", code


class _Data:
    @staticmethod
    def branch(_self: Any, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x

    @staticmethod
    def unknown_op(_self: Any, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)

    @staticmethod
    def part_of_the_sequence(_self: Any, x: Tensor) -> Tensor:
        return x + x[:, :1]

    @staticmethod
    def length_as_a_number(_self: Any, x: Tensor) -> Tensor:
        return x * x.shape[1]

    @staticmethod
    def write_through_a_view(_self: Any, x: Tensor) -> Tensor:
        y = x + 1
        y[..., :2].mul_(2)
        return y

    @staticmethod
    def own_attention(_self: Any, x: Tensor) -> Tensor:
        heads = x[:, None]
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)[:, 0]

    @staticmethod
    def double_precision(_self: Any, x: Tensor) -> Tensor:
        return x.double().sin().float()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("branch", "torch.export failed: GuardOnDataDependentSymNode"),
        ("unknown_op", "op aten.special_bessel_j0 is not known; add a handler"),
        ("part_of_the_sequence", "aten.slice takes a part of axis 1"),
        ("length_as_a_number", "aten.mul computes with the batch size or sequence length as a number"),
        ("write_through_a_view", "aten.mul_ writes through a view"),
        ("own_attention", "bypasses transformers' attention interface"),
        ("double_precision", "computes in torch.float64, which llmc does not have"),
    ],
)
def test_code_that_has_no_ir(code: str, expected: str, monkeypatch: pytest.MonkeyPatch, oracle: ModuleType) -> None:
    monkeypatch.setattr(LlamaMLP, "forward", getattr(_Data, code))
    message = refusal(meta_model(oracle.config_of("llama", num_hidden_layers=1)))
    assert re.match(r"model\.layers\.0\.mlp", message) and expected in message


def test_code_that_fixes_the_sizes(monkeypatch: pytest.MonkeyPatch, oracle: ModuleType) -> None:
    monkeypatch.setattr(LlamaMLP, "forward", lambda _, x: x.reshape(2, 11, -1))
    message = refusal(meta_model(oracle.config_of("llama", num_hidden_layers=1)))
    assert "its code fixes the batch size or the sequence length" in message


def test_unknown_ops_are_said_at_once_and_before_the_trace(monkeypatch: pytest.MonkeyPatch, oracle: ModuleType) -> None:
    """All that results depend on: by value or by a write to their storage, not what is thrown away."""

    def forward(_self: Any, x: Tensor) -> Tensor:
        torch.special.bessel_y0(x)
        y = torch.special.bessel_j1(x)
        y[..., :2].copy_(torch.special.bessel_j0(x[..., :2]))
        return y

    monkeypatch.setattr(LlamaMLP, "forward", forward)
    monkeypatch.setattr(torch.export, "export", None)
    where = "model.layers.0.mlp and 1 more"
    assert refusal(meta_model(oracle.config_of("llama", num_hidden_layers=2))) == (
        f"{where}: op aten.special_bessel_j1 is not known; {where}: op aten.special_bessel_j0 is not known; "
        "add a handler to compiler/capture/aten_*.py (importer.py says how)"
    )


def test_unknown_ops_whose_results_are_thrown_away(monkeypatch: pytest.MonkeyPatch, oracle: ModuleType) -> None:
    forward = LlamaMLP.forward

    def with_a_dead_op(self: Any, x: Tensor) -> Tensor:
        torch.special.bessel_j0(x)
        return forward(self, x)  # type: ignore[no-any-return]

    monkeypatch.setattr(LlamaMLP, "forward", with_a_dead_op)
    export(meta_model(oracle.config_of("llama", num_hidden_layers=1)))


def test_masks_that_the_model_computes(monkeypatch: pytest.MonkeyPatch, oracle: ModuleType) -> None:
    from transformers.models.llama import modeling_llama

    make = modeling_llama.create_causal_mask
    monkeypatch.setattr(modeling_llama, "create_causal_mask", lambda **k: make(**k).logical_not())
    assert "mask that the model computed itself" in refusal(meta_model(oracle.config_of("llama", num_hidden_layers=1)))
    monkeypatch.setattr(modeling_llama, "create_causal_mask", lambda **_: None)
    assert "model.layers.0.self_attn: attention without a mask" in refusal(
        meta_model(oracle.config_of("llama", num_hidden_layers=1))
    )


def test_a_buffer_that_changes(monkeypatch: pytest.MonkeyPatch, oracle: ModuleType) -> None:
    forward = LlamaRotaryEmbedding.forward

    def counting(self: Any, x: Tensor, position_ids: Tensor) -> Any:
        result = forward(self, x, position_ids)
        self.inv_freq.add_(1)  # after its last use: only the next call would see it
        return result

    monkeypatch.setattr(LlamaRotaryEmbedding, "forward", counting)
    assert "model.rotary_emb: aten.add_ changes a buffer" in refusal(
        meta_model(oracle.config_of("llama", num_hidden_layers=1))
    )


def test_a_buffer_too_large_to_compute(oracle: ModuleType) -> None:
    """Sizes of a config whose checkpoint nobody has compared with it: 20 GB of rotary frequencies."""
    model = meta_model(oracle.config_of("llama", num_hidden_layers=1, head_dim=10**10))
    assert re.search(r"inv_freq \[5000000000\]: computing it takes 20,000,000,000 bytes", refusal(model))


@pytest.mark.parametrize("theta", [0.0, -1.0])
def test_a_buffer_of_infinities(theta: float, oracle: ModuleType) -> None:
    """1 / 0, or a root of -1: every logit would be a NaN."""
    model = meta_model(oracle.config_of("llama", rope_parameters={"rope_type": "default", "rope_theta": theta}))
    assert "buffer model.rotary_emb.inv_freq: infinite or NaN as computed" in refusal(model)


def test_a_buffer_without_a_value(monkeypatch: pytest.MonkeyPatch, oracle: ModuleType) -> None:
    monkeypatch.setattr(LlamaModel, "_init_weights", lambda *_: None)
    assert "buffer model.rotary_emb.inv_freq has no value" in refusal(
        meta_model(oracle.config_of("llama", num_hidden_layers=1))
    )
