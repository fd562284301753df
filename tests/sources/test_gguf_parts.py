"""Files that are damaged, and models that lie in several."""

import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from llmc.compiler.sources.resolve import open_source
from tests.sources.gguf_files import llama_metadata, llama_tensors, meta, refusal, tiny_llama, write_gguf


def test_unreadable_files(tmp_path: Path) -> None:
    model = tiny_llama()
    path = tmp_path / "m.gguf"
    write_gguf(path, "llama", llama_metadata(model), llama_tensors(model))
    whole = path.read_bytes()
    for content in (b"", b"GGUF", b"not a gguf file at all", whole[:200], whole[:-100]):
        path.write_bytes(content)
        assert "truncated" in refusal(path)
    path.write_bytes(whole[:-100])
    assert "truncated: tensor blk.1.ffn_norm.weight ends past the file" in refusal(path)
    write_gguf(path, "warp", llama_metadata(model, "warp"), llama_tensors(model))
    assert "warp is not supported" in refusal(path)
    write_gguf(path, "lfm2", llama_metadata(model, "lfm2"), {})
    assert "'lfm2' is not supported yet" in refusal(path)


HEADS: dict[str, tuple[int, int, str]] = {
    "an unknown type": (99, 32, "tensor token_embd.weight is stored as type 99, which is unknown; quantise"),
    "a type without values": (
        int(Kind.Q8_K),
        256,
        "tensor token_embd.weight is stored as Q8_K, not supported; quantise",
    ),
    "rows that blocks do not fill": (
        int(Kind.Q8_0),
        40,
        "tensor token_embd.weight has rows of 40 values, no multiple of the 32 of Q8_0's blocks",
    ),
    "blocks that are cut off": (int(Kind.Q4_K), 256, "truncated: tensor token_embd.weight ends past"),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_tensor_whose_blocks_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    kind, columns, expected = HEADS[name]
    path = tmp_path / "m.gguf"
    write_gguf(path, "llama", llama_metadata(tiny_llama()), {"token_embd.weight": np.zeros((4, 1), np.float32)})
    content = bytearray(path.read_bytes())
    at = content.rindex(b"token_embd.weight") + len("token_embd.weight") + 4  # past the number of dimensions
    content[at : at + 8] = columns.to_bytes(8, "little")
    content[at + 16 : at + 20] = kind.to_bytes(4, "little")
    path.write_bytes(content)
    assert expected in refusal(path)


def test_a_file_of_the_other_byte_order_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "of the other byte order" in refusal(tmp_path / "m.gguf")


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """A Llama in four files, and its floats."""
    model = tiny_llama()
    write_gguf(tmp_path / "m.gguf", "llama", llama_metadata(model), llama_tensors(model), tensors_of_a_part=6)
    return sorted(tmp_path.glob("*.gguf"))


def test_a_model_in_parts_is_that_of_one_file(parts: list[Path]) -> None:
    assert [p.name for p in parts] == [f"m-{i:05}-of-00004.gguf" for i in range(1, 5)]
    source = open_source(str(parts[0]))
    assert (source.name, source.num_tensors) == ("m", 21)
    checkpoint = source.checkpoint(meta(source.config))
    state = tiny_llama().state_dict()
    assert set(checkpoint.names) == set(state)
    for name in checkpoint.names:
        np.testing.assert_array_equal(checkpoint[name].read_f32(), state[name].numpy())
    assert {checkpoint[name].origin.split(":")[0] for name in checkpoint.names} == {p.name for p in parts}


def renamed(parts: list[Path]) -> Path:
    return parts[0].rename(parts[0].with_name("model.gguf"))


def missing(parts: list[Path]) -> Path:
    parts[2].unlink()
    return parts[0]


def doubled(parts: list[Path]) -> Path:
    shutil.copy(parts[1], parts[2])
    return parts[0]


def whole(parts: list[Path]) -> Path:
    model = tiny_llama()
    write_gguf(parts[2], "llama", llama_metadata(model), llama_tensors(model))
    return parts[0]


def of_more_tensors(parts: list[Path]) -> Path:
    """Of a model with a head of its own."""
    model = tiny_llama(num_hidden_layers=1, hidden_size=64)
    folder = parts[0].parent / "other"
    folder.mkdir()
    write_gguf(folder / "m.gguf", "llama", llama_metadata(model), llama_tensors(model), tensors_of_a_part=3)
    shutil.copy(folder / parts[3].name, parts[3])
    return parts[0]


def of_the_same_tensors(parts: list[Path]) -> Path:
    """That says it is another part than it is."""
    content = bytearray(parts[1].read_bytes())
    at = content.index(b"split.no") + len("split.no") + 4
    content[at : at + 2] = (2).to_bytes(2, "little")
    parts[2].write_bytes(content)
    return parts[0]


def truncated(parts: list[Path]) -> Path:
    parts[3].write_bytes(parts[3].read_bytes()[:-40])
    return parts[0]


REFUSED: dict[str, tuple[Callable[[list[Path]], Path], str]] = {
    "not the first": (
        lambda parts: parts[1],
        "m-00002-of-00004.gguf: part 2 of 4; give the first, m-00001-of-00004.gguf",
    ),
    "renamed": (renamed, "model.gguf: part 1 of 4, expected the name NAME-00001-of-00004.gguf"),
    "missing": (missing, "m-00003-of-00004.gguf: part 3 of 4 is missing"),
    "doubled": (doubled, "m-00003-of-00004.gguf: part 2 of 4, expected part 3 of 4 of m-00001-of-00004.gguf"),
    "a whole model": (whole, "m-00003-of-00004.gguf: part 1 of 1, expected part 3 of 4 of m-00001-of-00004.gguf"),
    "foreign": (of_more_tensors, "m-00004-of-00004.gguf: split.tensors.count = 12 but 21 in m-00001-of-00004.gguf"),
    "foreign, with tensors of this": (of_the_same_tensors, "m-00003-of-00004.gguf: tensor "),
    "truncated": (truncated, "m-00004-of-00004.gguf: truncated: tensor "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_part_that_is_none_is_refused_by_name(parts: list[Path], name: str) -> None:
    damage, expected = REFUSED[name]
    assert expected in refusal(damage(parts))
