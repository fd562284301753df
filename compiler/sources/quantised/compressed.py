"""compressed-tensors, as llm-compressor writes it: groups of settings, each for the modules that its targets name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmc.compiler.sources.checkpoint import StoredDtype, StoredTensor
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.quantised.elements import in_words
from llmc.compiler.sources.quantised.fp4 import read_mxfp4, read_nvfp4
from llmc.compiler.sources.quantised.fp8 import Block, block_scales, read_fp8, scale_shapes, stated_block
from llmc.compiler.sources.quantised.kept import Array, Integers, ReadRows, scale_type
from llmc.compiler.sources.quantised.module import FLOATS, Module, Reading
from llmc.compiler.sources.quantised.patterns import named_by
from llmc.compiler.sources.quantised.stated import Stated

_FORMATS = (
    "dense",
    "float-quantized",
    "int-quantized",
    "mixed-precision",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "pack-quantized",
)


@dataclass(frozen=True)
class _Weights:
    """Settings of the weights of a group, and the modules that they are for."""

    targets: tuple[str, ...]
    bits: int
    is_float: bool
    symmetric: bool
    group: int  # columns that share a scale; 0: the row
    block: Block | None


@dataclass(frozen=True)
class CompressedTensors:
    groups: tuple[_Weights, ...]
    stated: Stated
    title = "compressed-tensors"

    @staticmethod
    def of(stated: Stated) -> CompressedTensors:
        """SourceError for formats, sparsity and transforms that are not read."""
        stated_groups = stated.get("config_groups", default={})
        if not isinstance(stated_groups, dict) or not all(isinstance(g, dict) for g in stated_groups.values()):
            raise stated.refusal("config_groups is no object of objects")
        for scope in (stated.settings, *stated_groups.values()):
            if (layout := scope.get("format")) not in (None, *_FORMATS):
                raise stated.refusal(f"format {layout} is not supported: expected one of {', '.join(_FORMATS)}")
        if (sparse := (stated.get("sparsity_config") or {}).get("format", "dense")) != "dense":
            raise stated.refusal(f"sparsity {sparse} is not supported")
        if (stated.get("transform_config") or {}).get("config_groups"):
            raise stated.refusal("transforms of activations (transform_config) are not supported")
        if (status := stated.get("quantization_status", default="compressed")) != "compressed":
            raise stated.refusal(f"quantization_status is {status}, expected compressed")
        weights = [(g, w) for g in stated_groups.values() if (w := g.get("weights")) is not None]
        return CompressedTensors(tuple(_weights(stated, g, w) for g, w in weights), stated)

    def read(self, module: Module) -> Reading | None:
        if "weight_packed" not in module and "weight_scale" not in module:
            return None
        weights = self._of(module.path)
        packed = module.tensors.get("weight_packed")
        if packed is not None and packed.dtype is StoredDtype.U8:
            read = read_mxfp4 if weights.group == 32 else read_nvfp4
            return read(module, "weight_packed", "weight_scale")
        if weights.is_float:
            return read_fp8(module, "weight_scale", weights.block or ((1, weights.group) if weights.group else None))
        return _integers(module, weights)

    def _of(self, path: str) -> _Weights:
        """A name before a pattern before a class, as compressed-tensors' own order is."""
        for kind in (lambda t: not t.startswith("re:") and t != "Linear", lambda t: t.startswith("re:")):
            for weights in self.groups:
                if named_by(path, filter(kind, weights.targets)):
                    return weights
        of_linears = [weights for weights in self.groups if "Linear" in weights.targets]
        if not of_linears:
            raise self.stated.refusal(f"module {path} is stored quantised, and no target of config_groups names it")
        return of_linears[0]


def _weights(stated: Stated, group: Mapping[str, Any], settings: Mapping[str, Any]) -> _Weights:
    if not isinstance(settings, dict):
        raise stated.refusal(f"weights is {settings!r}, expected an object")
    strategy = settings.get("strategy") or ("group" if settings.get("group_size") else "tensor")
    if strategy not in ("tensor", "channel", "group", "tensor_group", "block"):
        raise stated.refusal(f"weights quantised by {strategy} are not supported")
    of = Stated(stated.method, settings, stated.where)
    bits, is_float = of.number("num_bits", default=8), settings.get("type", "int") == "float"
    if bits not in (4, 8):
        raise stated.refusal(f"weights of {bits} bits are not supported: expected 4 or 8")
    size = of.number("group_size") if strategy in ("group", "tensor_group") else 0
    block = stated_block(stated, settings.get("block_structure")) if strategy == "block" else None
    targets = group.get("targets") or ["Linear"]
    return _Weights(tuple(targets), bits, is_float, bool(settings.get("symmetric", True)), max(size, 0), block)


def _integers(module: Module, weights: _Weights) -> Reading:
    """`weight_packed` in words of int32 along K, or `weight` in int8."""
    if "weight_packed" in module:
        data = module.matrix("weight_packed", StoredDtype.I32)
        n, k = shape = _shape(module, data, weights.bits)
        used = ["weight_packed", "weight_shape"]
        half = 1 << weights.bits - 1

        def codes(rows: tuple[int, int]) -> Array:
            return (in_words(data.bits(rows), weights.bits)[:, :k].astype(np.int16) - half).astype(np.int8)

    else:
        data = module.matrix("weight", StoredDtype.I8)
        n, k = shape = (data.shape[0], data.shape[1])
        used, codes = ["weight"], data.bits
    block = weights.block or ((1, weights.group) if weights.group else None)
    scales = module.take("weight_scale", FLOATS, *scale_shapes(shape, block))
    group = block[1] if block else 0
    grid = Integers(
        weights.bits,
        shape,
        group,
        scale_type(scales.dtype, group),
        codes,
        lambda rows: block_scales(scales, rows, block),
        _shifts(module, weights, n, scales.shape),
        weights.symmetric,
    )
    names = [*used, "weight_scale", *(["weight_zero_point"] if "weight_zero_point" in module else [])]
    if "weight_g_idx" in module:
        order = module.take("weight_g_idx", (StoredDtype.I32, StoredDtype.I64), (k,))
        return grid.in_order(module, order, *names, "weight_g_idx")
    return grid.reading(module, *names)


def _shape(module: Module, packed: StoredTensor, bits: int) -> tuple[int, int]:
    stated = module.take("weight_shape", (StoredDtype.I64, StoredDtype.I32), (2,))
    n, k = (int(size) for size in stated.bits())
    if (n, -(-k * bits // 32)) != packed.shape:
        raise SourceError(
            f"{packed.origin}: tensor {packed.name} has shape {list(packed.shape)}, expected "
            f"{[n, -(-k * bits // 32)]} of a weight {[n, k]} in {bits} bits"
        )
    return n, k


def _shifts(module: Module, weights: _Weights, n: int, shape: tuple[int, ...]) -> ReadRows | None:
    """Negated zero points: in int8, or packed along N as codes are along K."""
    if "weight_zero_point" not in module:
        return None
    if "weight_packed" in module:
        per_word, half = 32 // weights.bits, 1 << weights.bits - 1
        packed = module.take("weight_zero_point", (StoredDtype.I32,), (-(-n // per_word), *shape[1:]))

        def unpacked(rows: tuple[int, int]) -> Array:
            first = rows[0] // per_word
            words = packed.bits((first, -(-rows[1] // per_word)))
            found = in_words(words.reshape(len(words), -1).T, weights.bits)
            return half - found[:, rows[0] - first * per_word : rows[1] - first * per_word].T.astype(np.int16)

        return unpacked
    plain = module.take("weight_zero_point", (StoredDtype.I8,), shape)

    def whole(rows: tuple[int, int]) -> Array:
        points = plain.bits().astype(np.int16)
        if points.size == 1:
            return np.full((rows[1] - rows[0], 1), -points.reshape(()))
        return -points[rows[0] : rows[1]].reshape(rows[1] - rows[0], -1)

    return whole
