"""Which checkpoint tensors fill which parameters: each parameter from exactly one place, each tensor used.

transformers' own rules decide (key renamings, conversions, tied weights, keys ignored on load); what they leave
over is refused by name, where transformers would warn and go on with random values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from llmc.compiler.capture.conversions import converted
from llmc.compiler.capture.errors import CaptureError
from llmc.compiler.sources.checkpoint import AnyTensor, Checkpoint, QuantisedTensor, Rows, StoredDtype
from llmc.ir.ops.constant import Apply, Dequantize, Source, WeightExpr
from llmc.ir.ops.pointwise import Cast
from llmc.ir.types import DType, TensorType

_CHUNK_ROWS = 4096


@dataclass(frozen=True)
class Parameters:
    """Where every parameter and persistent buffer of a module comes from."""

    exprs: Mapping[str, WeightExpr]
    """float32 expressions over checkpoint tensors, by state_dict name (under every name of a tied one)."""
    ignored: tuple[str, ...]
    """Checkpoint tensors that transformers itself ignores on load."""
    untied: tuple[str, ...]
    """Parameters that the config ties to another, and the checkpoint holds with other values."""


def bind(model: PreTrainedModel, checkpoint: Checkpoint) -> Parameters:
    """Bind a module (on meta) to a checkpoint. CaptureError for a tensor or parameter that is left over.

    Where the checkpoint holds other values for a tied parameter than for the one it is tied to, they are untied in
    the module, as transformers does.
    """
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    exprs, unexpected = _sources(model, checkpoint, shapes)
    ignored = _ignored(model, unexpected)
    if left := sorted(unexpected - ignored):
        raise CaptureError(
            f"checkpoint tensor {left[0]} belongs to no parameter of {type(model).__name__}{_more(left)}"
        )
    untied = _tie(model, exprs, checkpoint)
    if missing := sorted(shapes.keys() - exprs.keys()):
        raise CaptureError(f"parameter {missing[0]} of {type(model).__name__} is not in the checkpoint{_more(missing)}")
    for name, expr in exprs.items():
        if expr.type.shape != shapes[name]:
            raise CaptureError(
                f"parameter {name}: the checkpoint's has shape {list(expr.type.shape)}, "
                f"the module's {list(shapes[name])}"
            )
    return Parameters(exprs, tuple(sorted(ignored)), untied)


def _sources(
    model: PreTrainedModel, checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, WeightExpr], set[str]]:
    """(expressions by parameter, checkpoint keys that no parameter has), by transformers' renamings and conversions."""
    transforms = get_model_conversion_mapping(model)
    renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    by_pattern = {pattern: c for c in converters for pattern in c.source_patterns}
    meta = model.state_dict()
    prefix = model.base_model_prefix
    exprs: dict[str, WeightExpr] = {}
    origin: dict[str, str] = {}
    groups: dict[str, list[tuple[str, str, WeightExpr]]] = {}
    unexpected: set[str] = set()
    for key in sorted(checkpoint.names, key=dot_natural_key):  # the order in which experts are merged
        name, pattern = rename_source_key(key, renamings, converters, prefix, meta)
        if name not in shapes and key in shapes:
            name, pattern = rename_source_key(key, [], [], prefix, meta)
        if name not in shapes:
            unexpected.add(key)
        elif pattern is not None:
            groups.setdefault(name, []).append((key, pattern, _stored(checkpoint[key])))
        else:
            _fill(exprs, origin, name, _stored(checkpoint[key]), key)
    for first, sources in groups.items():
        converter = by_pattern[sources[0][1]]
        for name, expr in converted(converter, first, sources, model).items():
            _fill(exprs, origin, name, expr, sources[0][0])
    return exprs, unexpected


def _fill(exprs: dict[str, WeightExpr], origin: dict[str, str], name: str, expr: WeightExpr, key: str) -> None:
    if name in exprs:
        raise CaptureError(f"parameter {name} is filled by both checkpoint tensors {origin[name]} and {key}")
    exprs[name] = expr
    origin[name] = key


def _stored(tensor: AnyTensor) -> WeightExpr:
    """A checkpoint tensor in float32 (exact where it is stored as floats: in 32 bits or fewer)."""
    if isinstance(tensor, QuantisedTensor):
        whole = TensorType(DType.F32, tensor.shape)
        types = {part: tensor.numbers.part_type(part, whole) for part in tensor.numbers.parts}
        leaves = (Source(tensor.name, t.dtype, t.static_shape(), part=part) for part, t in types.items())
        return Apply(Dequantize(tensor.numbers), tuple(leaves))
    dtypes = {StoredDtype.F32: DType.F32, StoredDtype.F16: DType.F16, StoredDtype.BF16: DType.BF16}
    if tensor.dtype not in dtypes:
        raise CaptureError(f"checkpoint tensor {tensor.name} is stored as {tensor.dtype.value}, not supported")
    source = Source(tensor.name, dtypes[tensor.dtype], tensor.shape)
    return source if source.dtype is DType.F32 else Apply(Cast(DType.F32), (source,))


def stored_values(checkpoint: Checkpoint, source: Source, rows: Rows | None = None) -> NDArray[Any]:
    """What a leaf of a parameter's expression stands for, or rows of it; floats as float32."""
    tensor = checkpoint[source.name]
    if source.part is None:
        return tensor.read_f32(rows)
    assert isinstance(tensor, QuantisedTensor)
    return tensor.read_part(source.part, rows)


def _ignored(model: PreTrainedModel, unexpected: set[str]) -> set[str]:
    """Of the keys without a parameter, those that transformers ignores by name."""
    patterns = set(model._keys_to_ignore_on_load_unexpected or ())
    # buffers that older versions stored and transformers' loader now skips for every model
    buffers = [name for name, _ in model.named_buffers()]
    if any(name.endswith("rotary_emb.inv_freq") for name in buffers):
        patterns.add(r"rotary_emb\.inv_freq")
    if any(name.endswith("position_ids") for name in buffers):
        patterns.add(r"(^|\.)position_ids$")
    return {key for key in unexpected if any(re.search(pattern, key) for pattern in patterns)}


def _tie(model: PreTrainedModel, exprs: dict[str, WeightExpr], checkpoint: Checkpoint) -> tuple[str, ...]:
    """Give tied parameters one expression; untie in the module those whose values differ."""
    untied = []
    tied: dict[str, str] = dict(model.all_tied_weights_keys)
    for target, source in tied.items():
        if target in exprs and source in exprs:
            if _equal(exprs[target], exprs[source], checkpoint):
                exprs[target] = exprs[source]
            else:
                _untie(model, target)
                untied.append(target)
    for _ in tied:  # more than two names may be tied: pass what is known on until nothing changes
        for target, source in tied.items():
            if target not in exprs and source in exprs:
                exprs[target] = exprs[source]
            elif source not in exprs and target in exprs:
                exprs[source] = exprs[target]
    return tuple(untied)


def _equal(a: WeightExpr, b: WeightExpr, checkpoint: Checkpoint) -> bool:
    """Whether two parameters hold the same values, read a few rows at a time."""
    if a == b:
        return True
    left, right = _leaf(a), _leaf(b)
    if left is None or right is None or left.shape != right.shape:
        return False
    one, other = checkpoint[left.name], checkpoint[right.name]
    rows = left.shape[0] if left.shape else 0
    if not left.shape:
        return bool(one.read_f32() == other.read_f32())
    for start in range(0, rows, _CHUNK_ROWS):
        part = (start, min(start + _CHUNK_ROWS, rows))
        if not np.array_equal(one.read_f32(part), other.read_f32(part)):
            return False
    return True


def _leaf(expr: WeightExpr) -> Source | None:
    match expr:
        case Source():
            return expr
        case Apply(Cast(), (Source() as source,)) | Apply(Dequantize(), (Source() as source, *_)):
            return source
        case _:
            return None


def _untie(model: PreTrainedModel, name: str) -> None:
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    shape = model.get_parameter(name).shape
    setattr(module, leaf, nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False))
    model.all_tied_weights_keys.pop(name, None)


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
