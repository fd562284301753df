"""What a capture says of the settings of a config.json: unread ones, contradictions, the one at fault."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaMLP

from llmc.compiler.capture.capture import capture, ignored_settings
from llmc.compiler.capture.errors import CaptureError
from llmc.compiler.sources.model_source import ModelSource
from llmc.compiler.sources.shapes import open_shapes

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 97,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
}
Open = Callable[..., ModelSource]


@pytest.fixture
def shapes(tmp_path: Path) -> Open:
    def write(**changes: Any) -> ModelSource:
        (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes))
        return open_shapes(tmp_path)

    return write


def test_settings_are_ignored_that_nobody_reads(shapes: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's code may read what the config class knows nothing of."""
    forward = LlamaMLP.forward

    def scaled(self: Any, x: Tensor) -> Tensor:
        return forward(self, x) * self.config.read_scale  # type: ignore[no-any-return]

    monkeypatch.setattr(LlamaMLP, "forward", scaled)
    source = shapes(read_scale=3.0, foo_scale=2.0)
    assert ignored_settings(source, capture(source)) == ["foo_scale"]


def test_contradictions_are_said(shapes: Open, caplog: pytest.LogCaptureFixture) -> None:
    source = shapes(rope_theta=5e5, rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    with caplog.at_level(logging.WARNING, logger="llmc"):
        captured = capture(source)
    (line,) = [r.getMessage() for r in caplog.records if r.name.startswith("llmc")]
    assert line.endswith(
        "config.json: rope_theta is 500000.0, but rope_parameters.rope_theta is 10000.0, "
        "which is what transformers uses"
    )
    assert ignored_settings(source, captured) == ["rope_theta (rope_parameters.rope_theta counts)"]


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("num_key_value_heads", 0, "ZeroDivisionError"),
        ("num_attention_heads", -1, "negative dimension"),
        ("intermediate_size", 0, "has no elements"),
        ("vocab_size", -1, "negative dimension"),
        ("hidden_act", "silly", "KeyError: 'silly'"),
        ("head_dim", 3, "torch.export failed: RuntimeError: The size of tensor"),  # found by running it
    ],
)
def test_the_setting_at_fault_is_named(shapes: Open, setting: str, value: object, words: str, tmp_path: Path) -> None:
    """Whatever transformers' or torch's own words are."""
    with pytest.raises(CaptureError) as caught:
        capture(shapes(**{setting: value}))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/config.json: {setting} is {value!r}, which transformers cannot use: ")
    assert words in message and "\n" not in message


def test_code_that_fails_whatever_the_settings_is_not_blamed_on_one(
    shapes: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LlamaMLP, "forward", lambda _, x: x if x.sum() > 0 else -x)
    with pytest.raises(CaptureError, match=r"config\.json: model\.layers\.0\.mlp: torch\.export failed: GuardOn"):
        capture(shapes())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_theta": 0}, "infinite or NaN as computed"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "infinite or NaN as computed"),
        ({"rope_theta": -1.0}, "infinite or NaN as computed"),
    ],
)
def test_numbers_that_no_answer_can_come_from(shapes: Open, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        capture(shapes(**changes))
