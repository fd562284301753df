"""What is stored otherwise is refused by its name, what is damaged by the tensor's: one line each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.published import HUGGINGFACE
from llmc.compiler.sources.quantised.methods import READERS, REFUSED, reader_of
from llmc.compiler.sources.quantised.stated import Stated
from llmc.compiler.sources.resolve import open_source
from llmc.compiler.sources.shapes import open_shapes
from tests.sources.quantised.folders import write
from tests.sources.quantised.forms import FORMS, Key, ct

GPTQ: Key = ("GPTQ", "4 bits, zero points")


def refusal(folder: Path) -> str:
    with pytest.raises(SourceError) as caught:
        open_source(str(folder))
    message = str(caught.value)
    assert "\n" not in message
    return message


def stated(**settings: Any) -> str:
    """Why settings are refused, before any tensor is looked at."""
    with pytest.raises(SourceError) as caught:
        reader_of(Stated(settings["quant_method"], settings, "config.json: quantization_config"))
    assert str(caught.value).startswith(f"config.json: quantization_config: {settings['quant_method']}: ")
    return str(caught.value)


@pytest.mark.parametrize("method", [*REFUSED, "something-new"])
def test_a_method_that_is_not_read_is_refused_by_its_name(method: str) -> None:
    assert "not supported" in stated(quant_method=method)


_CT4: dict[str, Any] = {"num_bits": 4, "strategy": "group", "group_size": 64}
VARIANTS: dict[Key, list[tuple[dict[str, Any], str]]] = {
    ("GPTQ", "2 or 3 bits"): [({"quant_method": "gptq", "bits": bits}, f"of {bits} bits") for bits in (2, 3)],
    ("GPTQ", "marlin and other layouts"): [
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": layout}, f"the {layout} layout")
        for layout in ("marlin", "bitblas", "qqq")
    ]
    + [({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "the marlin layout")],
    ("AWQ", "gemv, marlin and other layouts"): [
        ({"quant_method": "awq", "bits": 4, "version": version}, f"the {version} layout")
        for version in ("gemv", "gemv_fast", "marlin", "exllama", "ipex")
    ],
    ("AutoRound", "its own packing"): [
        ({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:exllamav2"}, "auto_round:exllamav2"),
        ({"quant_method": "auto-round", "bits": 4}, "packing_format auto_round "),
    ],
    ("compressed-tensors", "sparsity, transforms"): [
        (ct("marlin-24", **_CT4), "format marlin-24"),
        ({**ct("pack-quantized", **_CT4), "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
        ({**ct("pack-quantized", **_CT4), "transform_config": {"config_groups": {"R1": {}}}}, "transform_config"),
        ({**ct("pack-quantized", **_CT4), "quantization_status": "frozen"}, "quantization_status is frozen"),
        (ct("pack-quantized", num_bits=3, strategy="channel"), "weights of 3 bits"),
    ],
}


@pytest.mark.parametrize(
    ("settings", "expected"), [variant for variants in VARIANTS.values() for variant in variants], ids=str
)
def test_a_layout_that_is_not_read_is_refused_by_its_name(settings: dict[str, Any], expected: str) -> None:
    assert expected in stated(**settings)


def test_settings_that_are_none() -> None:
    assert "bits is None, expected a whole number" in stated(quant_method="gptq")
    assert "group_size is 0" in stated(quant_method="gptq", bits=4, group_size=0)
    assert "of 8 bits" in stated(quant_method="awq", bits=8)
    assert "[0, 128]" in stated(quant_method="fp8", weight_block_size=[0, 128])
    assert "quant_algo W4A8_AWQ" in stated(quant_method="modelopt", quant_algo="W4A8_AWQ")
    assert "config_groups" in stated(quant_method="compressed-tensors", config_groups=["x"])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quantization_config": "gptq"}, "quantization_config is 'gptq', expected an object"),
        ({"quantization_config": {"bits": 4}}, "no quant_method"),
        ({"compression_config": {"quant_method": "aqlm"}}, "compression_config: aqlm"),
        ({"text_config": {"quantization_config": {"quant_method": "vptq"}}}, "text_config.quantization_config: vptq"),
        ({"quantization_config": {"quant_method": "GPTQ", "bits": 2}}, "gptq: weights of 2 bits"),
    ],
)
def test_config(tmp_path: Path, config: dict[str, Any], expected: str) -> None:
    folder = write(tmp_path / "model", FORMS[GPTQ]).folder
    whole = json.loads((folder / "config.json").read_text())
    del whole["quantization_config"]
    (folder / "config.json").write_text(json.dumps({**whole, **config}))
    assert expected in refusal(folder)


def test_rows_of_the_documents_that_are_refused_are_refused_here() -> None:
    refused = {(row.source, row.form) for row in HUGGINGFACE if row.refused}
    elsewhere = {("torchao", "Int4TilePackedTo4dTensor and others"), ("HQQ", "1, 2 or 3 bits")}
    assert refused == set(VARIANTS) | elsewhere and not REFUSED.keys() & READERS.keys()


def damaged(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> str:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    return refusal(folder)


Q = "model.layers.0.self_attn.q_proj"
DAMAGE: list[tuple[Key, str, Callable[[torch.Tensor], torch.Tensor | None], str]] = [
    (GPTQ, "scales", lambda t: None, f"model.safetensors: tensor {Q}.scales is missing"),
    (GPTQ, "qzeros", lambda t: t[:, 1:].clone(), f"tensor {Q}.qzeros has shape [1, 15], expected [1, 16]"),
    (GPTQ, "qweight", lambda t: t.float(), f"tensor {Q}.qweight is F32, expected I32"),
    (GPTQ, "qweight", lambda t: t[0].clone(), f"tensor {Q}.qweight has shape [128], expected a matrix"),
    (GPTQ, "g_idx", lambda t: t + 1, f"tensor {Q}.g_idx names group 1, expected 0 to 0"),
    (("AWQ", "4 bits, gemm"), "scales", lambda t: t.to(torch.int32), f"{Q}.scales is I32, expected F16 or BF16 or F32"),
    (
        ("compressed-tensors", "4 bits, symmetric"),
        "weight_shape",
        lambda t: t + 8,
        f"{Q}.weight_packed has shape [128, 16], expected [136, 17] of a weight [136, 136] in 4 bits",
    ),
    (("fp8", "blocks of 128x128 (DeepSeek, Qwen)"), "weight_scale_inv", lambda t: t.repeat(2, 1), "expected [1, 1]"),
    (("bitsandbytes", "int8"), "weight_format", lambda t: t + 1, f"tensor {Q}.weight_format is not 0 (row)"),
    (("bitsandbytes", "nf4"), "weight.absmax", lambda t: None, f"{Q}.weight.absmax is missing"),
    (("bitsandbytes", "nf4"), "weight.quant_state.bitsandbytes__nf4", lambda t: t[:-3], "is no state of a matrix"),
    (("HQQ", "4 bits"), "nbits", lambda t: t - 1, f"{Q}.W_q has 3 bits, not supported"),
    (("HQQ", "4 bits"), "quant_zero", lambda t: t + 1, f"{Q}.quant_zero is set"),
    (("HQQ", "8 bits"), "W_q", lambda t: t[:-1].clone(), f"tensor {Q}.W_q has shape [255, 64], expected [256, 64]"),
    (
        ("HQQ", "8 bits"),
        "group_size",
        lambda t: t - 16,
        f"tensor {Q}.W_q has groups of 48 over the ends of rows of 128",
    ),
]


@pytest.mark.parametrize(("key", "leaf", "change", "expected"), DAMAGE, ids=[f"{d[0][0]}-{d[1]}" for d in DAMAGE])
def test_a_damaged_tensor_is_refused_by_its_name(
    tmp_path: Path, key: Key, leaf: str, change: Callable[[torch.Tensor], torch.Tensor | None], expected: str
) -> None:
    folder = write(tmp_path / "model", FORMS[key]).folder

    def apply(tensors: dict[str, torch.Tensor]) -> None:
        changed = change(tensors.pop(f"{Q}.{leaf}"))
        if changed is not None:
            tensors[f"{Q}.{leaf}"] = changed

    assert expected in damaged(folder, apply)


def test_torchao_s_other_tensors_and_what_its_metadata_lacks(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", FORMS["torchao", "Int8Tensor"]).folder
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors, path, {f"{Q}.weight": json.dumps({"_type": "Int4TilePackedTo4dTensor", "_data": {}})})
    assert f"metadata of {Q}.weight: torchao's Int4TilePackedTo4dTensor is not supported" in _of(folder, Q)
    save_file(tensors, path)
    assert f"the metadata does not say what {Q}._weight_qdata is a part of" in _of(folder, Q)


def _of(folder: Path, path: str) -> str:
    """With the tensors of one quantised module alone."""
    file = folder / "model.safetensors"
    with safe_open(str(file), "pt") as handle:
        metadata = handle.metadata()
    kept = {n: t for n, t in load_file(file).items() if "._weight_" not in n or n.startswith(path)}
    save_file(kept, file, metadata)
    return refusal(folder)


def test_a_checkpoint_that_is_not_stored_as_its_config_says(tmp_path: Path) -> None:
    form = FORMS[GPTQ]
    written = write(tmp_path / "model", form, skip=lambda path: True)
    assert "gptq: no tensor of the checkpoint is stored so" in refusal(written.folder)


def test_the_config_alone_does_not_show_what_is_quantised(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", FORMS[GPTQ]).folder
    with pytest.raises(SourceError, match="gptq: only the tensors show"):
        open_shapes(folder)
