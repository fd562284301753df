"""The layers and steps attention is tested at: contexts around cache blocks and splits, tails of rows, several
sequences in one tile, windows and chunks smaller than a tile, every head dimension's padding and bank layout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from llmc.codegen.cuda.attention.layer import Layer
from llmc.codegen.cuda.attention.params import CombineAttentionParams, DecodeAttentionParams, PrefillAttentionParams
from llmc.codegen.cuda.kernel import KernelParams
from llmc.ir.types import DType

if TYPE_CHECKING:
    from harness import Shape

_BF16, _F16, _F32 = DType.BF16, DType.F16, DType.F32
# Query heads over KV heads: groups of 1, 2, 3, 7, 12, 20 (two MMA tiles), 71 (more rows than a prefill tile).
LAYERS = {
    "smollm": Layer(_BF16, 3, 1, 64, 64, 128),
    "plain f16": Layer(_F16, 2, 2, 64, 64, 64),
    "wide": Layer(_BF16, 4, 2, 128, 128, 128),
    "widest": Layer(_BF16, 2, 1, 256, 256, 64, softcap=True),
    "halves": Layer(_BF16, 2, 1, 40, 136, 64),
    "narrow": Layer(_BF16, 7, 1, 8, 8, 64),
    "tail": Layer(_F16, 12, 1, 24, 16, 128, window=40),
    "uneven": Layer(_BF16, 2, 1, 96, 80, 64, sinks=True),
    "latent": Layer(_BF16, 20, 1, 80, 128, 128, sinks=True),
    "gemma": Layer(_BF16, 2, 1, 96, 96, 64, window=5, softcap=True),
    "chunked": Layer(_BF16, 2, 1, 16, 48, 64, chunk=48),
    "sinking": Layer(_F16, 4, 2, 64, 64, 64, window=100, sinks=True),
    "alibi": Layer(_BF16, 3, 3, 64, 64, 64, alibi=True),
    "multi-query": Layer(_BF16, 71, 1, 64, 64, 64, softcap=True, sinks=True, alibi=True, window=70),
}
# (contexts, rows): keys of each sequence with this step's, and this step's.
PREFILL = [
    ("smollm", (1,), (1,)),
    ("smollm", (31,), (31,)),
    ("smollm", (129, 2, 40), (1, 2, 19)),
    ("smollm", (257,), (23,)),
    ("plain f16", (32,), (32,)),
    ("plain f16", (33, 5, 1, 70), (33, 0, 1, 3)),
    ("wide", (130, 1), (34, 1)),
    ("wide", (255,), (4,)),
    ("widest", (70,), (9,)),
    ("widest", (1, 33), (1, 33)),
    ("halves", (96, 32), (3, 32)),
    ("narrow", (64, 3), (10, 3)),
    ("tail", (200, 45), (6, 45)),
    ("uneven", (65,), (65,)),
    ("latent", (128, 3), (3, 3)),
    ("gemma", (90, 7), (40, 7)),
    ("chunked", (100, 49), (40, 1)),
    ("sinking", (142, 3), (20, 2)),
    ("alibi", (127,), (70,)),
    ("multi-query", (150, 1), (2, 1)),
]
DECODE = [
    ("smollm", (1,)),
    ("smollm", (31, 129)),
    ("smollm", (257, 256, 255)),
    ("plain f16", (32, 64, 65)),
    ("wide", (33,)),
    ("wide", (130,)),
    ("widest", (70, 1)),
    ("halves", (66,)),
    ("narrow", (64, 3)),
    ("tail", (200, 40, 41)),
    ("uneven", (65,)),
    ("latent", (128, 3)),
    ("gemma", (90, 5, 68)),
    ("chunked", (100, 48, 49)),
    ("sinking", (256, 99)),
    ("alibi", (127,)),
    ("multi-query", (150, 1)),
]


def _prefill(
    name: str, contexts: tuple[int, ...], rows: tuple[int, ...], min_tokens: int = 1
) -> tuple[KernelParams, Shape]:
    layer = LAYERS[name]
    result = _F32 if len(contexts) % 2 else layer.dtype
    return PrefillAttentionParams(layer, result, min_tokens), {"contexts": contexts, "rows": rows}


def _single(contexts: tuple[int, ...]) -> Shape:
    """All sequences with one token, and two with none and two, which decode passes over."""
    return {"contexts": (3, *contexts, 40), "rows": (0, *[1] * len(contexts), 2)}


PREFILL_CASES: list[tuple[KernelParams, Shape]] = [
    *[_prefill(*case) for case in PREFILL],
    _prefill("smollm", (50, 3, 7, 20), (1, 2, 1, 20), min_tokens=2),
    _prefill("multi-query", (90, 1), (2, 1), min_tokens=2),  # a tile without work
]
DECODE_CASES: list[tuple[KernelParams, Shape]] = [
    (DecodeAttentionParams(LAYERS[name]), _single(contexts)) for name, contexts in DECODE
]
COMBINE_CASES: list[tuple[KernelParams, Shape]] = [
    (CombineAttentionParams(LAYERS[name], _F32 if i % 2 else LAYERS[name].dtype), _single(contexts))
    for i, (name, contexts) in enumerate(DECODE)
]

# What mutate.py runs against mutants of each header.
ATTENTION_MUTATED: dict[str, list[tuple[KernelParams, Shape]]] = {
    "attention_softmax.cuh": [
        _prefill("gemma", (90, 7), (40, 7)),
        _prefill("chunked", (100, 49), (40, 1)),
        (DecodeAttentionParams(LAYERS["tail"]), _single((200, 40, 41))),
        (CombineAttentionParams(LAYERS["sinking"], _F32), _single((256, 99))),
    ],
    "attention_layer.cuh": [
        _prefill("tail", (150, 45), (6, 45)),
        _prefill("widest", (1, 33), (1, 33)),
        _prefill("halves", (64,), (9,)),
        (DecodeAttentionParams(LAYERS["chunked"]), _single((100, 48, 49))),
    ],
    "attention_prefill.cuh": [
        _prefill("smollm", (129, 2, 40), (1, 2, 19)),
        _prefill("sinking", (142, 3), (20, 2)),  # windows that begin with a block's last position
        _prefill("narrow", (64, 3), (10, 3)),
        _prefill("smollm", (50, 3, 7, 20), (1, 2, 1, 20), min_tokens=2),
        _prefill("multi-query", (150, 1), (2, 1), min_tokens=2),  # a tile without work
        _prefill("plain f16", (33, 5, 1, 70), (33, 0, 1, 3)),
        _prefill("alibi", (64,), (64,)),
    ],
    "attention_decode.cuh": [
        (DecodeAttentionParams(LAYERS["tail"]), _single((200, 40, 41))),
        (DecodeAttentionParams(LAYERS["latent"]), _single((128, 3))),
        (DecodeAttentionParams(LAYERS["chunked"]), _single((100, 48, 49))),
        (DecodeAttentionParams(LAYERS["widest"]), _single((70, 1))),
        (DecodeAttentionParams(LAYERS["alibi"]), _single((127,))),
    ],
}
ATTENTION_CASES = [*PREFILL_CASES, *DECODE_CASES, *COMBINE_CASES]


def attention_matrix() -> Iterator[tuple[KernelParams, Shape]]:
    """Every layer at every prefill and decode step (make soak)."""
    for name in LAYERS:
        for _, contexts, rows in PREFILL:
            yield _prefill(name, contexts, rows)
        for _, contexts in DECODE:
            yield DecodeAttentionParams(LAYERS[name]), _single(contexts)
