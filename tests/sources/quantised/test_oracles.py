"""transformers' own dequantisation, where it runs without the methods' packages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from llmc.compiler.sources.checkpoint import QuantisedTensor
from llmc.compiler.sources.quantised.methods import reader_of
from llmc.compiler.sources.quantised.mxfp4 import NUMBERS, expert_rows
from llmc.compiler.sources.quantised.read import QuantisedCheckpoint, modules_of, read_quantised
from llmc.compiler.sources.quantised.stated import Stated
from llmc.compiler.sources.safetensors_checkpoint import open_safetensors
from tests.sources.quantised import written as w


def read(folder: Path, tensors: dict[str, torch.Tensor], **settings: object) -> QuantisedCheckpoint:
    save_file(tensors, folder / "model.safetensors")
    stated = Stated(str(settings["quant_method"]), settings, "config.json")
    return read_quantised(open_safetensors(folder), reader_of(stated), stated)


def test_fp8_in_blocks_is_what_transformers_makes_of_it(tmp_path: Path) -> None:
    for block, dtype in ((128, torch.float32), (128, torch.bfloat16), (64, torch.float32)):
        shape = (256, 384)
        linear = w.fp8("weight_scale_inv", (block, block), dtype)(shape, torch.Generator().manual_seed(block))
        tensors = {f"m.{name}": tensor for name, tensor in linear.tensors.items()}
        found = read(tmp_path, tensors, quant_method="fp8", weight_block_size=[block, block]).checkpoint["m.weight"]
        op = Fp8Dequantize(None)
        scale = linear.tensors["weight_scale_inv"]
        expected = op._dequantize_one(linear.tensors["weight"], scale, torch.float32)
        np.testing.assert_array_equal(found.read_f32(), expected.numpy())
        np.testing.assert_array_equal(found.read_f32((100, 200)), expected.numpy()[100:200])


def test_experts_in_mxfp4_are_what_transformers_makes_of_them(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (3, 10, 4, 16), generator=g).to(torch.uint8)
    scales = torch.randint(110, 130, (3, 10, 4), generator=g).to(torch.uint8)
    path = "model.layers.0.mlp.experts.gate_up_proj"
    bias = {f"{path}_bias": torch.zeros(3, 10)}
    tensors = {f"{path}_blocks": blocks, f"{path}_scales": scales, **bias}
    checkpoint = read(tmp_path, tensors, quant_method="mxfp4").checkpoint
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).numpy()
    assert set(checkpoint.names) == {path, f"{path}_bias"}
    assert checkpoint[path].shape == expected.shape == (3, 128, 10)
    np.testing.assert_array_equal(checkpoint[path].read_f32(), expected)
    np.testing.assert_array_equal(checkpoint[path].read_f32((1, 3)), expected[1:3])

    (module,) = (m for m in modules_of(open_safetensors(tmp_path)) if m.path == path)
    rows = expert_rows(module)
    assert isinstance(rows, QuantisedTensor) and (rows.numbers, rows.shape) == (NUMBERS, (30, 128))
    np.testing.assert_array_equal(rows.read_f32((7, 23)), expected.transpose(0, 2, 1).reshape(30, 128)[7:23])
