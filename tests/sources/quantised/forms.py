"""By the rows of docs/formats.md: what states each format, and who writes it."""

from __future__ import annotations

from typing import Any

import torch

from tests.sources.quantised import written as w
from tests.sources.quantised.written import Form

Key = tuple[str, str]


def _gptq(bits: int = 4, group: int = 128, symmetric: bool = True, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": False, **more}


def _awq(group: int = 128, **more: Any) -> dict[str, Any]:
    stated = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return {**stated, **more}


def ct(layout: str, targets: list[str] | None = None, **weights: Any) -> dict[str, Any]:
    """compressed-tensors with one group of settings."""
    group = {"targets": targets or ["Linear"], "weights": {"symmetric": True, "type": "int", **weights}}
    groups = {"group_0": {**group, "input_activations": None, "output_activations": None}}
    stated = {"quant_method": "compressed-tensors", "format": layout, "quantization_status": "compressed"}
    return {**stated, "config_groups": groups, "ignore": ["lm_head"], "kv_cache_scheme": None}


def _round(packing: str) -> dict[str, Any]:
    return {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "packing_format": packing}


_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
_AO = {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}}}
_HQQ = {"quant_method": "hqq", "quant_config": {}, "skip_modules": ["lm_head"]}
_BNB = {"quant_method": "bitsandbytes", "llm_int8_skip_modules": None}

FORMS: dict[Key, Form] = {
    ("GPTQ", "4 bits, symmetric"): Form(_gptq(), w.gptq()),
    ("GPTQ", "4 bits, symmetric, whole rows"): Form(_gptq(group=-1), w.gptq(group=-1)),
    ("GPTQ", "4 bits, zero points"): Form(_gptq(symmetric=False), w.gptq(symmetric=False)),
    ("GPTQ", "4 bits, zero points, gptq_v2"): Form(
        _gptq(symmetric=False, checkpoint_format="gptq_v2"), w.gptq(symmetric=False, less=0)
    ),
    ("GPTQ", "8 bits, symmetric"): Form(_gptq(8), w.gptq(8)),
    ("GPTQ", "8 bits, zero points"): Form(_gptq(8, symmetric=False), w.gptq(8, symmetric=False)),
    ("GPTQ", "8 bits, zero points of 0, gptq_v2"): Form(
        _gptq(8, symmetric=False, checkpoint_format="gptq_v2"), w.gptq(8, symmetric=False, less=0, zero=True)
    ),
    ("GPTQ", "act order"): Form(_gptq(group=32, desc_act=True), w.gptq(group=32, act_order=True)),
    ("AWQ", "4 bits, gemm"): Form(_awq(), w.awq()),
    ("AWQ", "4 bits, gemm, whole rows"): Form(_awq(-1), w.awq(-1)),
    ("AutoRound", "packed as GPTQ"): Form(_round("auto_round:auto_gptq"), w.gptq()),
    ("AutoRound", "packed as AWQ"): Form(_round("auto_round:auto_awq"), w.awq()),
    ("compressed-tensors", "4 bits, symmetric"): Form(
        ct("pack-quantized", num_bits=4, strategy="group", group_size=64), w.ct_packed()
    ),
    ("compressed-tensors", "4 bits, zero points"): Form(
        ct("pack-quantized", num_bits=4, strategy="group", group_size=64, symmetric=False), w.ct_packed(symmetric=False)
    ),
    ("compressed-tensors", "order of activation"): Form(
        ct("pack-quantized", num_bits=4, strategy="group", group_size=64, actorder="group"),
        w.ct_packed(act_order=True),
    ),
    ("compressed-tensors", "4 bits, channels"): Form(
        ct("pack-quantized", num_bits=4, strategy="channel"), w.ct_packed(group=0)
    ),
    ("compressed-tensors", "8 bits, symmetric"): Form(
        ct("pack-quantized", num_bits=8, strategy="group", group_size=64), w.ct_packed(8)
    ),
    ("compressed-tensors", "int8, channels (W8A8)"): Form(
        ct("int-quantized", num_bits=8, strategy="channel"), w.ct_int8()
    ),
    ("compressed-tensors", "int8, channels, zero points"): Form(
        ct("int-quantized", num_bits=8, strategy="channel", symmetric=False), w.ct_int8(symmetric=False)
    ),
    ("compressed-tensors", "fp8, tensor"): Form(
        ct("float-quantized", num_bits=8, type="float", strategy="tensor"),
        w.fp8("weight_scale", None, torch.bfloat16, more=("input_scale",)),
    ),
    ("compressed-tensors", "fp8, channels"): Form(
        ct("float-quantized", num_bits=8, type="float", strategy="channel"),
        w.fp8("weight_scale", None, torch.bfloat16, per_row=True),
    ),
    ("compressed-tensors", "fp8, blocks"): Form(
        ct("float-quantized", num_bits=8, type="float", strategy="block", block_structure=[128, 128]),
        w.fp8("weight_scale", (128, 128), torch.bfloat16),
    ),
    ("compressed-tensors", "MXFP4"): Form(
        ct("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32), w.mxfp4()
    ),
    ("compressed-tensors", "NVFP4"): Form(
        ct("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16),
        w.nvfp4("weight_packed", "weight_global_scale", divides=True),
    ),
    ("fp8", "blocks of 128x128 (DeepSeek, Qwen)"): Form(
        {**_FP8, "weight_block_size": [128, 128]}, w.fp8("weight_scale_inv", (128, 128))
    ),
    ("fp8", "tensor"): Form(
        {**_FP8, "activation_scheme": "static"}, w.fp8("weight_scale_inv", None, more=("activation_scale",))
    ),
    ("fp8", "tensor (AutoFP8)"): Form(
        {**_FP8, "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        w.fp8("weight_scale", None, torch.bfloat16, more=("input_scale",)),
    ),
    ("MXFP8", "blocks of 32"): Form({"quant_method": "mxfp8"}, w.fp8("weight_scale_inv", (1, 32), torch.uint8)),
    ("FBGEMM fp8", "channels"): Form(
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
        w.fp8("weight_scale", None, per_row=True, more=("input_scale_ub",)),
    ),
    ("ModelOpt", "FP8"): Form(
        {"quant_method": "modelopt", "quant_algo": "FP8"}, w.fp8("weight_scale", None, more=("input_scale",))
    ),
    ("ModelOpt", "NVFP4"): Form(
        {"quant_method": "modelopt", "quant_algo": "NVFP4"}, w.nvfp4("weight", "weight_scale_2", divides=False)
    ),
    ("bitsandbytes", "int8"): Form({**_BNB, "load_in_8bit": True}, w.bnb_int8),
    ("bitsandbytes", "nf4"): Form({**_BNB, "load_in_4bit": True}, w.bnb_4bit("nf4", nested=True)),
    ("bitsandbytes", "fp4"): Form({**_BNB, "load_in_4bit": True}, w.bnb_4bit("fp4", nested=False)),
    ("torchao", "Int8Tensor"): Form(_AO, w.ao_rows("Int8Tensor")),
    ("torchao", "Int4Tensor"): Form(_AO, w.ao_int4(symmetric=False)),
    ("torchao", "Int4Tensor, symmetric"): Form(_AO, w.ao_int4(symmetric=True)),
    ("torchao", "IntxUnpackedToInt8Tensor, int4"): Form(_AO, w.ao_intx(4)),
    ("torchao", "IntxUnpackedToInt8Tensor, int8, zero points"): Form(_AO, w.ao_intx(8)),
    ("torchao", "Float8Tensor"): Form(_AO, w.ao_rows("Float8Tensor")),
    ("HQQ", "4 bits"): Form(_HQQ, w.hqq(4, 1)),
    ("HQQ", "8 bits"): Form(_HQQ, w.hqq(8, 1)),
    ("HQQ", "axis 0"): Form(_HQQ, w.hqq(4, 0)),
}
