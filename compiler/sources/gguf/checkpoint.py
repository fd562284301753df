"""GGUF tensors under HF's names, dequantised when read.

Names and value transforms (Llama's q/k permutation, Gemma's norm - 1, merged experts) are transformers' own:
its name map is asked for the module's names, and its tensor processor is run on each tensor as it is read.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from llmc.compiler.sources.checkpoint import Checkpoint, Rows, StoredDtype, StoredTensor, checkpoint_of
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.gguf.advice import INSTEAD
from llmc.compiler.sources.gguf.reading import hf_names
from llmc.compiler.sources.model_config import one_line

GgufTensor = gguf.ReaderTensor


def open_gguf_checkpoint(
    path: Path, tensors: Sequence[GgufTensor], architecture: str, model: PreTrainedModel
) -> Checkpoint:
    """The file's tensors as HF parameters of `model` (on meta will do); SourceError for an unmapped one."""
    make_processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
    processor = make_processor(config=model.config.to_dict())  # type: ignore[no-untyped-call]
    try:
        names = hf_names(model, processor)
    except NotImplementedError as error:
        raise SourceError(f"{path}: {one_line(error)}") from error
    view = _TransformersView(path, processor, names)
    sources: defaultdict[str, list[GgufTensor]] = defaultdict(list)
    for tensor in tensors:
        sources[view.target(tensor)].append(tensor)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    return checkpoint_of([view.stored(name, parts, shapes) for name, parts in sources.items()])


class _TransformersView:
    """How transformers would fill a module from this file, one tensor at a time."""

    def __init__(self, path: Path, processor: TensorProcessor, names: dict[str, str]) -> None:
        self.path = path
        self.processor = processor
        self.names = names

    def target(self, tensor: GgufTensor) -> str:
        """HF name of the tensor (or of the larger one it is a part of)."""
        if (name := self.names.get(tensor.name)) is not None:
            return name
        placed: dict[str, Any] = {}
        self._process(tensor, _widthless(tensor), placed)
        if len(placed) != 1:
            raise SourceError(f"{self.path}: tensor {tensor.name} has no place in transformers' model; {INSTEAD}")
        return next(iter(placed))

    def stored(self, name: str, parts: list[GgufTensor], shapes: dict[str, tuple[int, ...]]) -> StoredTensor:
        if name not in shapes:
            raise SourceError(
                f"{self.path}: tensor {parts[0].name} maps to {name}, which the model does not have; {INSTEAD}"
            )
        shape = shapes[name]
        origin = f"{self.path.name}:{'+'.join(part.name for part in parts)}"
        if len(parts) == 1 and self._is_untouched(parts[0]):
            shape = _shape(parts[0])

            def read(rows: Rows | None) -> NDArray[Any]:
                return _dequantise(parts[0], rows)
        else:

            def read(rows: Rows | None) -> NDArray[Any]:
                whole = self._read_processed(name, parts)
                return whole if rows is None else whole[rows[0] : rows[1]]

        return StoredTensor(name, StoredDtype.F32, shape, origin, read)

    def _is_untouched(self, tensor: GgufTensor) -> bool:
        """Whether the processor hands the values on as they are, so that rows can be read alone."""
        probe = _widthless(tensor)
        try:
            return self._process(tensor, probe, {}) is probe
        except ValueError:  # it reshapes by the full width
            return False

    def _read_processed(self, name: str, parts: list[GgufTensor]) -> NDArray[np.float32]:
        placed: dict[str, Any] = {}
        for part in parts:
            values = self._process(part, _dequantise(part, None), placed)
            if values is not None:
                return np.ascontiguousarray(values, dtype=np.float32)
        result = placed[name]
        return result.numpy() if isinstance(result, torch.Tensor) else np.asarray(result)

    def _process(self, tensor: GgufTensor, values: NDArray[Any], placed: dict[str, Any]) -> NDArray[Any] | None:
        """The processed values; None where the processor put them into `placed` itself."""
        result = self.processor.process(  # type: ignore[no-untyped-call]
            weights=values,
            name=tensor.name,
            tensor_key_mapping=self.names,
            parsed_parameters={"tensors": placed},
        )
        return None if result.name is None else result.weights


def _shape(tensor: GgufTensor) -> tuple[int, ...]:
    return tuple(int(dim) for dim in reversed(tensor.shape))  # ggml counts from the fastest dimension


def _widthless(tensor: GgufTensor) -> NDArray[np.float32]:
    """An array with the tensor's rows and no columns: shows what a processor does without any data."""
    shape = _shape(tensor)
    return np.zeros((*shape[:-1], 0) if len(shape) > 1 else shape, np.float32)


def _dequantise(tensor: GgufTensor, rows: Rows | None) -> NDArray[np.float32]:
    data = tensor.data if rows is None else tensor.data[rows[0] : rows[1]]
    return gguf.dequantize(data, tensor.tensor_type).astype(np.float32, copy=False)
