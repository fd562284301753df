"""Blocks of GGUF files, as parts and as values; the oracles are the gguf package and transformers' dequantiser."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from transformers.integrations.gguf.dequant import dequantize

from llmc.compiler.sources.checkpoint import AnyTensor, QuantisedTensor, StoredTensor
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.gguf.blocks import FORMATS
from llmc.compiler.sources.gguf.checkpoint import _TransformersView
from llmc.compiler.sources.gguf.reading import BadTensor, _num_bytes
from llmc.compiler.sources.gguf.tensor import GgufTensor
from llmc.compiler.sources.published import GGUF
from llmc.compiler.sources.resolve import open_source
from llmc.ir.formats import Part
from tests.sources.gguf_files import llama_metadata, llama_tensors, meta, tiny_llama, write_gguf

Bytes = NDArray[np.uint8]
FLOATS = (Kind.F16, Kind.BF16)
OTHERS = (Kind.Q2_K, Kind.Q3_K, Kind.IQ2_XXS, Kind.IQ3_S, Kind.IQ1_M)  # as stored by nobody
EMBEDDING, QUERY = "token_embd.weight", "blk.0.attn_q.weight"
COLUMNS = 512


def random_blocks(kind: Kind, rows: int, seed: int = 0) -> Bytes:
    """Rows of blocks whose every bit is random, but for scales that are not finite; the first row is zeros."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(seed).integers(0, 256, (rows, COLUMNS // block, size), np.uint8)
    if kind in FORMATS:
        fields = blocks.view(FORMATS[kind].struct)[..., 0]
        for name in ("d", "dmin", "m"):
            if name in (fields.dtype.names or ()) and fields[name].dtype == np.float16:
                fields[name][~np.isfinite(fields[name])] = 1.5
        if kind is Kind.MXFP4:
            fields["e"] %= 250
        if kind is Kind.NVFP4:
            fields["d"] &= 127
    blocks[0] = 0
    return blocks.reshape(rows, -1)


def read(tmp_path: Path, kind: Kind, blocks: Bytes, gguf_name: str, name: str) -> AnyTensor:
    """A parameter of a Llama whose tensor of this name holds the blocks."""
    model = tiny_llama(hidden_size=COLUMNS)
    tensors = llama_tensors(model)
    del tensors[gguf_name]
    write_gguf(tmp_path / "m.gguf", "llama", llama_metadata(model), tensors, {gguf_name: (blocks, kind)})
    source = open_source(str(tmp_path / "m.gguf"))
    assert source.quantization == (None if kind in FLOATS else f"{kind.name} x1")
    return source.checkpoint(meta(source.config))[name]


def embedding(tmp_path: Path, kind: Kind, blocks: Bytes) -> AnyTensor:
    return read(tmp_path, kind, blocks, EMBEDDING, "model.embed_tokens.weight")


def dequantised(kind: Kind, blocks: Bytes) -> NDArray[np.float32]:
    """By whom the tests trust: transformers' dequantiser where it knows the type."""
    if kind in FLOATS:
        dtype = torch.float16 if kind is Kind.F16 else torch.bfloat16
        return torch.from_numpy(blocks).view(dtype).float().numpy()
    try:
        return dequantize(torch.from_numpy(blocks), int(kind)).float().numpy().reshape(len(blocks), -1)
    except (KeyError, NotImplementedError, ValueError):
        return gguf.dequantize(blocks, kind)


def test_every_type_is_in_the_table_of_formats() -> None:
    """Integers and doubles are no formats of weights."""
    types = {kind.name for kind in Kind} - {"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"}
    known = {kind.name for kind in gguf.quants._type_traits}
    stated = {row.form: row for row in GGUF if row.form in types}
    assert stated.keys() == types
    assert {name: row.numbers for name, row in stated.items() if row.numbers} == {
        kind.name: format_.numbers for kind, format_ in FORMATS.items()
    }
    assert {name for name, row in stated.items() if row.refused} == types - known


@pytest.mark.parametrize("kind", FORMATS, ids=[kind.name for kind in FORMATS])
def test_parts_stand_for_the_values_of_the_blocks(tmp_path: Path, kind: Kind) -> None:
    """To the bit, but for the sign of zeros; in order of rows, and by ranges of rows."""
    blocks = random_blocks(kind, 32)
    tensor = embedding(tmp_path, kind, blocks)
    assert isinstance(tensor, QuantisedTensor) and tensor.numbers == FORMATS[kind].numbers
    expected = gguf.dequantize(blocks, kind)
    assert np.isfinite(expected).all() and not expected[0].any() and np.unique(expected).size > 400
    np.testing.assert_array_equal(tensor.read_f32(), expected)
    np.testing.assert_array_equal(tensor.read_f32((5, 9)), expected[5:9])
    np.testing.assert_allclose(tensor.read_f32(), dequantised(kind, blocks), rtol=1e-6)
    codes = tensor.read_part(Part.DATA, (3, 4))
    assert codes.dtype == np.int8 and codes.shape == (1, COLUMNS)


@pytest.mark.parametrize("kind", (*FLOATS, *OTHERS), ids=lambda kind: kind.name)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_other_types_are_read_as_their_values(tmp_path: Path, kind: Kind) -> None:
    blocks = random_blocks(kind, 32)
    tensor = embedding(tmp_path, kind, blocks)
    assert isinstance(tensor, StoredTensor)
    expected = dequantised(kind, blocks)  # random scales may be NaN or infinite; they must come back as such
    np.testing.assert_allclose(tensor.read_f32(), expected, rtol=1e-6)
    np.testing.assert_allclose(tensor.read_f32((5, 9)), expected[5:9], rtol=1e-6)


@pytest.mark.parametrize("kind", (Kind.Q4_1, Kind.Q6_K, Kind.F16, Kind.Q3_K), ids=lambda kind: kind.name)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_rows_of_queries_are_put_in_order_with_their_parts(tmp_path: Path, kind: Kind) -> None:
    """4 heads of 8 rows, of which llama.cpp takes turns between the halves."""
    blocks = random_blocks(kind, 32)
    tensor = read(tmp_path, kind, blocks, QUERY, "model.layers.0.self_attn.q_proj.weight")
    assert isinstance(tensor, QuantisedTensor) == (kind in FORMATS)
    values = dequantised(kind, blocks)
    expected = values.reshape(4, 4, 2, COLUMNS).swapaxes(1, 2).reshape(32, COLUMNS)
    np.testing.assert_allclose(tensor.read_f32(), expected, rtol=1e-6)
    np.testing.assert_allclose(tensor.read_f32((3, 21)), expected[3:21], rtol=1e-6)


class Processor:
    """Of transformers' kind: does one thing to every tensor."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def process(self, weights: Any, name: str, **_: Any) -> Any:
        return type("Processed", (), {"weights": self.transform(weights), "name": name})


ORDERS: dict[str, tuple[Any, list[int] | None]] = {
    "untouched": (lambda w: w, [0, 1, 2, 3, 4, 5]),
    "a copy": (lambda w: w.copy(), [0, 1, 2, 3, 4, 5]),
    "reversed": (lambda w: w[::-1], [5, 4, 3, 2, 1, 0]),
    "by turns": (lambda w: w.reshape(2, 3, -1).swapaxes(0, 1).reshape(w.shape), [0, 3, 1, 4, 2, 5]),
    "a row twice": (lambda w: w[[0, 0, 2, 3, 4, 5]], None),
    "fewer rows": (lambda w: w[:4], None),
    "columns reversed": (lambda w: w[:, ::-1], None),
    "less one": (lambda w: w - 1, None),
    "doubled": (lambda w: w * 2, None),
    "the last less": (lambda w: w.max() - w, None),
    "logarithms": (lambda w: np.log(-w), None),
    "transposed": (lambda w: w.T, None),
    "in its full width": (lambda w: w.reshape(6, 32)[::-1], None),
    "rows shifted in one column": (lambda w: np.stack([w[:, 0], np.roll(w[:, 1], 1)], 1), None),
}


@pytest.mark.parametrize("name", ORDERS)
def test_only_an_order_of_rows_is_taken_for_one(name: str) -> None:
    transform, order = ORDERS[name]
    view = _TransformersView(Processor(transform), {})  # type: ignore[arg-type]
    found = view._order(GgufTensor(Path("m.gguf"), "t", Kind.Q8_0, (6, 32), np.zeros((6, 34), np.uint8)))
    assert (None if found is None else found.tolist()) == order


@pytest.mark.parametrize("kind", FORMATS, ids=[kind.name for kind in FORMATS])
def test_scales_that_are_no_numbers_are_refused(tmp_path: Path, kind: Kind) -> None:
    blocks = random_blocks(kind, 32)
    fields = blocks.view(FORMATS[kind].struct)
    names = [n for n in ("d", "e", "dmin", "m") if n in (fields.dtype.names or ())]
    for name in names:
        damaged = blocks.copy()
        field = damaged.view(FORMATS[kind].struct)[7, -1:][name]
        field[...] = np.nan if field.dtype == np.float16 else 255
        tensor = embedding(tmp_path, kind, damaged)
        tensor.read_f32((0, 7))
        part = "offset" if name in ("dmin", "m") else "scale"
        with pytest.raises(SourceError, match=f"m.gguf:token_embd.weight: {part}s of row 7 of .* are not finite"):
            tensor.read_f32((5, 9))


def test_the_rows_of_docs_formats_md_are_what_is_read() -> None:
    rows = {row.form: row for row in GGUF}
    assert {Kind[name] for name, row in rows.items() if row.numbers is not None} == set(FORMATS)
    floats = {name for name, row in rows.items() if row.numbers is None and not row.refused}
    assert {kind.name for kind in OTHERS} <= floats
    for name, row in rows.items():
        number = int(Kind[name])
        if row.refused:
            with pytest.raises(BadTensor, match=f"stored as {name}, not supported"):
                _num_bytes("x", [256], number)
        else:
            assert _num_bytes("x", [256], number) > 0
