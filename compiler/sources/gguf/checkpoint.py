"""GGUF tensors under HF's names: blocks that linears are multiplied in stay as they are, all others are dequantised.

Names and value transforms (Llama's q/k permutation, Gemma's norm - 1, merged experts) are transformers' own:
its name map is asked for the module's names, and its tensor processor is run on each tensor as it is read. What it does
to numbers that are all different shows where it only reorders rows, which blocks can follow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from llmc.compiler.sources.checkpoint import (
    AnyTensor,
    Checkpoint,
    QuantisedTensor,
    Rows,
    StoredDtype,
    StoredTensor,
    checkpoint_of,
)
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.gguf.advice import INSTEAD
from llmc.compiler.sources.gguf.blocks import FORMATS, BlockFormat
from llmc.compiler.sources.gguf.reading import FLOATS, hf_names
from llmc.compiler.sources.gguf.tensor import ALL, GgufTensor, Taken
from llmc.compiler.sources.model_config import one_line
from llmc.ir.formats import Part

Order = NDArray[np.intp]


def open_gguf_checkpoint(
    path: Path, tensors: Sequence[GgufTensor], architecture: str, model: PreTrainedModel
) -> Checkpoint:
    """The tensors as HF parameters of `model` (on meta will do); SourceError for an unmapped one."""
    make_processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
    processor = make_processor(config=model.config.to_dict())  # type: ignore[no-untyped-call]
    try:
        names = hf_names(model, processor)
    except NotImplementedError as error:
        raise SourceError(f"{path}: {one_line(error)}") from error
    view = _TransformersView(processor, names)
    sources: defaultdict[str, list[GgufTensor]] = defaultdict(list)
    for tensor in tensors:
        sources[view.target(tensor)].append(tensor)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    return checkpoint_of([view.stored(name, parts, shapes) for name, parts in sources.items()])


class _TransformersView:
    """How transformers would fill a module from these tensors, one at a time."""

    def __init__(self, processor: TensorProcessor, names: dict[str, str]) -> None:
        self.processor = processor
        self.names = names

    def target(self, tensor: GgufTensor) -> str:
        """HF name of the tensor (or of the larger one it is a part of)."""
        if (name := self.names.get(tensor.name)) is not None:
            return name
        placed: dict[str, Any] = {}
        self._process(tensor, np.zeros(_narrow(tensor, 0), np.float32), placed)
        if len(placed) != 1:
            raise SourceError(f"{tensor.file}: tensor {tensor.name} has no place in transformers' model; {INSTEAD}")
        return next(iter(placed))

    def stored(self, name: str, parts: list[GgufTensor], shapes: dict[str, tuple[int, ...]]) -> AnyTensor:
        if name not in shapes:
            raise SourceError(
                f"{parts[0].file}: tensor {parts[0].name} maps to {name}, which the model does not have; {INSTEAD}"
            )
        origin = "+".join(dict.fromkeys(part.file.name for part in parts))
        origin += f":{'+'.join(part.name for part in parts)}"
        order = self._order(parts[0]) if len(parts) == 1 else None
        if order is not None:
            return _reordered(name, parts[0], order, origin)

        def read(rows: Rows | None) -> NDArray[Any]:
            whole = self._read_processed(name, parts)
            return whole if rows is None else whole[rows[0] : rows[1]]

        return StoredTensor(name, StoredDtype.F32, shapes[name], origin, read, _low_bits(parts))

    def _order(self, tensor: GgufTensor) -> Order | None:
        """Which row of the tensor each row of the parameter is; None where the processor does more than reorder rows,
        or needs their full width."""
        shape = _narrow(tensor, 2)
        probe = np.square(np.arange(np.prod(shape))).reshape(shape)  # squares: shifted or scaled they are none
        try:
            with np.errstate(all="ignore"):
                made = self._process(tensor, probe, {})
        except (ValueError, KeyError):
            return None
        if made is probe:
            return np.arange(len(probe))
        if made is None or made.shape != probe.shape:
            return None
        keys = probe.reshape(len(probe), -1)[:, 0]
        order = np.searchsorted(keys, np.nan_to_num(made.reshape(len(probe), -1)[:, 0])).clip(max=len(keys) - 1)
        every_row = np.array_equal(np.sort(order), np.arange(len(probe)))
        return order if every_row and np.array_equal(probe[order], made) else None

    def _read_processed(self, name: str, parts: list[GgufTensor]) -> NDArray[np.float32]:
        placed: dict[str, Any] = {}
        for part in parts:
            values = self._process(part, part.dequantise(), placed)
            if values is not None:
                return np.ascontiguousarray(values, dtype=np.float32)
        result = placed[name]
        return result.numpy() if isinstance(result, torch.Tensor) else np.asarray(result)

    def _process(self, tensor: GgufTensor, values: NDArray[Any], placed: dict[str, Any]) -> NDArray[Any] | None:
        """The processed values; None where the processor put them into `placed` itself."""
        result = self.processor.process(
            weights=values,
            name=tensor.name,
            tensor_key_mapping=self.names,
            parsed_parameters={"tensors": placed},
        )
        return None if result.name is None else result.weights


def _narrow(tensor: GgufTensor, columns: int) -> tuple[int, ...]:
    """The tensor's shape with so many columns, which show what a processor does without any data."""
    return (*tensor.shape[:-1], columns) if len(tensor.shape) > 1 else tensor.shape


def _reordered(name: str, tensor: GgufTensor, order: Order, origin: str) -> AnyTensor:
    """A parameter whose rows are the tensor's in some order: each can be read alone."""
    in_place = np.array_equal(order, np.arange(len(order)))

    def taken(rows: Rows | None) -> Taken:
        wanted = ALL if rows is None else slice(*rows)
        return wanted if in_place else order[wanted]

    blocks = FORMATS.get(tensor.kind)
    if blocks is not None and len(tensor.shape) == 2:
        return _quantised(name, tensor, blocks, taken, origin)
    read = lambda rows: tensor.dequantise(taken(rows))  # noqa: E731
    return StoredTensor(name, StoredDtype.F32, tensor.shape, origin, read, _low_bits([tensor]))


def _low_bits(tensors: Sequence[GgufTensor]) -> str | None:
    names = dict.fromkeys(tensor.kind.name for tensor in tensors if tensor.kind.name not in FLOATS)
    return "+".join(names) or None


def _quantised(
    name: str, tensor: GgufTensor, blocks: BlockFormat, taken: Callable[[Rows | None], Taken], origin: str
) -> QuantisedTensor:
    def read(part: Part, rows: Rows | None) -> NDArray[Any]:
        return blocks.part(tensor.data[taken(rows)], part)

    num_rows, columns = tensor.shape
    return QuantisedTensor(name, blocks.numbers, (num_rows, columns), origin, read)
