"""Reading a GGUF header at the speed of its bytes.

The gguf package makes an object of every string of the vocabulary, and transformers parses the file anew for
the config and builds gguf's table of tensor names once per module: a minute for a Gemma. Here the file is
parsed once, its long arrays are counted and read when asked for, and the table of names is built once.
"""

import functools
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import (
    TensorProcessor,
    get_gguf_hf_weights_map,
    load_gguf_checkpoint,
)

_OTHER_TYPE = "quantise the model to another format, Q8_0 or Q4_K say (llama-quantize)"
FLOATS = ("F32", "F16", "BF16")

# Arrays up to here (layer types, rope sections, tags) are read in full.
_LONG_ARRAY = 4096


class BadTensor(Exception):
    """A tensor that the header describes and that cannot be read; the message is one line for people."""


class HeaderReader(gguf.GGUFReader):
    """A GGUFReader whose arrays of more than 4096 items have the right length and no content.

    Raises BadTensor, or whatever numpy raises for a header that is none.
    """

    def _build_tensors(self, start_offs: int, fields: list[gguf.ReaderField]) -> None:
        for field in fields:
            _, _, _, dims, kind, offset = field.parts
            size = _num_bytes(field.name, [int(dim) for dim in dims], int(kind[0]))
            if start_offs + int(offset[0]) + size > self.data.nbytes:
                raise BadTensor(f"truncated: tensor {field.name} ends past the file's {self.data.nbytes} bytes")
        super()._build_tensors(start_offs, fields)

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[NDArray[Any]], list[int], list[gguf.GGUFValueType]]:
        if raw_type != gguf.GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        item_type, count = struct.unpack_from("<IQ", self.data.data, orig_offs)
        start = orig_offs + 12
        scalar = self.gguf_scalar_to_np.get(gguf.GGUFValueType(item_type))
        is_string = item_type == gguf.GGUFValueType.STRING
        if count <= _LONG_ARRAY or not (scalar or is_string):
            return super()._get_field_parts(orig_offs, raw_type)
        if scalar is not None:
            end = start + count * np.dtype(scalar).itemsize
            stand_in = np.zeros(1, scalar)
        else:
            end = self._past_strings(start, count)
            stand_in = np.zeros(0, np.uint8)
        types = [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType(item_type)]
        return end - orig_offs, [stand_in], [0] * count, types

    def scalars(self) -> dict[str, Any]:
        """Every key but the arrays, which are the vocabulary and the like."""
        fields = ((key, field) for key, field in self.fields.items() if field.types)
        return {key: field.contents() for key, field in fields if field.types[0] != gguf.GGUFValueType.ARRAY}

    def strings(self, key: str) -> list[str] | None:
        """The content of an array of strings; None where the file has none under this key."""
        if (start := self._array(key, gguf.GGUFValueType.STRING)) is None:
            return None
        found: list[str] = []
        data, (offset, count) = self.data.data, start
        length_at = struct.Struct("<Q").unpack_from
        for _ in range(count):
            end = offset + 8 + length_at(data, offset)[0]
            found.append(str(data[offset + 8 : end], "utf-8"))
            offset = end
        return found

    def numbers(self, key: str, *kinds: gguf.GGUFValueType) -> NDArray[Any] | None:
        """The content of an array of one of these kinds of numbers; None where the file has none under this key."""
        if (start := self._array(key, *kinds)) is None:
            return None
        kind = gguf.GGUFValueType(self.fields[key].types[1])
        return np.frombuffer(self.data.data, self.gguf_scalar_to_np[kind], start[1], start[0])

    def _array(self, key: str, *kinds: gguf.GGUFValueType) -> tuple[int, int] | None:
        """(offset of the first item, number of items). ValueError for a field that is no such array."""
        if (field := self.fields.get(key)) is None:
            return None
        if len(field.types) != 2 or field.types[1] not in kinds:
            stated = " of ".join(kind.name for kind in field.types)
            raise ValueError(f"{key} is {stated}, expected ARRAY of {' or '.join(kind.name for kind in kinds)}")
        after_key = field.offset + 8 + len(key.encode()) + 4  # length, name, type
        return after_key + 12, struct.unpack_from("<Q", self.data.data, after_key + 4)[0]

    def _past_strings(self, offset: int, count: int) -> int:
        data = self.data.data
        length_at = struct.Struct("<Q").unpack_from
        for _ in range(count):
            offset += 8 + length_at(data, offset)[0]
        return offset


def _num_bytes(name: str, dims: list[int], number: int) -> int:
    """Of a tensor's data. Raises BadTensor for a type that is not read, or blocks that do not fill its rows."""
    try:
        kind = gguf.GGMLQuantizationType(number)
    except ValueError:
        raise BadTensor(f"tensor {name} is stored as type {number}, which is unknown; {_OTHER_TYPE}") from None
    if kind.name not in FLOATS and kind not in gguf.quants._type_traits:
        raise BadTensor(f"tensor {name} is stored as {kind.name}, not supported; {_OTHER_TYPE}")
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if dims and dims[0] % block:
        raise BadTensor(
            f"tensor {name} has rows of {dims[0]} values, no multiple of the {block} of {kind.name}'s blocks"
        )
    return math.prod(dims) // block * block_bytes


def read_gguf_config(path: Path, reader: HeaderReader) -> dict[str, Any]:
    """transformers' config dict for the file; raises whatever transformers raises."""
    with _already_parsed(reader):
        config: dict[str, Any] = load_gguf_checkpoint(str(path))["config"]
    return config


def hf_names(model: PreTrainedModel, processor: TensorProcessor) -> dict[str, str]:
    """GGUF tensor name -> HF parameter name, by transformers' map. NotImplementedError: gguf has none."""
    with patch.object(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)):
        names: dict[str, str] = get_gguf_hf_weights_map(model, processor)
    return names


@contextmanager
def _already_parsed(reader: HeaderReader) -> Iterator[None]:
    # transformers takes a path only, and imports the class inside the function that uses it
    with patch.object(gguf, "GGUFReader", lambda _path: reader):
        yield
