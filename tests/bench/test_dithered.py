"""Dithered copies: within half a step of the source, off its grid, the same each time; all else is kept."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants

from bench.dithered import DitherError, dither, steps, write_dithered

KINDS = (Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.Q4_K, Type.Q5_K, Type.Q6_K)


def blocks(kind: Type, rows: int = 4) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Rows of two blocks with random codes and group scales; every f16 of a block is 2^-6 or 2^-7."""
    _, size = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(1).integers(0, 256, (2 * rows, size), dtype=np.uint8)
    halves = {Type.Q6_K: (208,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q4_1: (0, 2), Type.Q5_1: (0, 2)}
    for number, at in enumerate(halves.get(kind, (0,))):
        data[:, at : at + 2] = np.array([2.0 ** (-6 - number)], np.float16).view(np.uint8)
    return data.reshape(rows, 2 * size)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_weight_moves_by_up_to_half_of_the_step_between_its_groups_codes(kind: Type) -> None:
    """Judged by the values themselves: differences in a group are whole numbers of steps, without a common factor."""
    data = blocks(kind)
    values = quants.dequantize(data, kind)
    step = np.abs(steps(data.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1]), kind)).reshape(-1, 1)
    grouped = values.reshape(step.shape[0], -1)
    counts = (grouped - grouped[:, :1]) / np.where(step == 0, 1, step)
    assert np.abs(counts - counts.round()).max() < 1e-3
    assert np.gcd.reduce(counts.round().astype(int), axis=None) == 1
    moved = (dither(data, kind, 5).reshape(grouped.shape) - grouped) / np.where(step == 0, 1, step)
    assert 0.4 < np.abs(moved).max() <= 0.5 + 1e-3 and abs(moved.mean()) < 0.1
    assert np.array_equal(dither(data, kind, 5), dither(data, kind, 5))


def test_a_type_whose_steps_are_not_even_is_refused() -> None:
    with pytest.raises(DitherError, match="IQ4_NL"):
        dither(blocks(Type.IQ4_NL), Type.IQ4_NL, 1)


def test_a_copy_keeps_facts_floats_and_shapes(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "source.gguf", "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_file_type(2)
    norm = np.arange(64, dtype=np.float32)
    writer.add_tensor("norm.weight", norm)
    writer.add_tensor("a.weight", blocks(Type.Q4_0), raw_dtype=Type.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    copy = gguf.GGUFReader(write_dithered(tmp_path / "source.gguf", tmp_path / "copy.gguf"))
    facts = {name: field.contents() for name, field in copy.fields.items() if not name.startswith("GGUF.")}
    assert facts == {
        "general.architecture": "llama",
        "llama.block_count": 3,
        "tokenizer.ggml.tokens": ["a", "b"],
        "general.file_type": 32,
    }
    kept, dithered = copy.tensors
    assert kept.tensor_type is Type.F32 and np.array_equal(kept.data, norm)
    assert dithered.tensor_type is Type.BF16 and list(dithered.shape) == [64, 4]
    values = quants.dequantize(dithered.data, Type.BF16)
    source = quants.dequantize(blocks(Type.Q4_0), Type.Q4_0)
    assert 0 < np.abs(values - source).max() <= 2.0**-7 + 2.0**-9 and len(np.unique(values)) > 64
    assert not list(tmp_path.glob(".*"))
