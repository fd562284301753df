"""The shapes kernels are tested at: tails in every dimension, one row, exact tiles, one beside them."""

from __future__ import annotations

from collections.abc import Iterator

from harness import Shape
from linear_shapes import LINEAR_CASES, linear_matrix

from llmc.codegen.cuda.attention import DecodeAttentionParams, PrefillAttentionParams, RopeAppendParams
from llmc.codegen.cuda.kernel import KernelParams
from llmc.codegen.cuda.rows_examples import examples

_DECODE: list[dict[str, int | tuple[int, ...]]] = [
    {"lens": lens, "kv_heads": kv}
    for lens, kv in [
        ((1,), 1),
        ((15,), 1),
        ((16,), 2),
        ((17,), 1),
        ((31, 33), 1),
        ((255,), 1),
        ((256,), 1),
        ((257,), 1),
        ((511, 1), 1),
        ((513,), 1),
        ((1, 64, 300), 2),
        ((2, 3, 5, 7), 1),
    ]
]
_PREFILL: list[dict[str, int | tuple[int, ...]]] = [
    {"lens": lens, "rows": rows, "kv_heads": 1}
    for lens, rows in [
        ((1,), (1,)),
        ((7,), (7,)),
        ((16,), (16,)),
        ((17,), (17,)),
        ((63,), (63,)),
        ((64,), (64,)),
        ((65,), (65,)),
        ((66, 3), (1, 3)),
        ((80,), (20,)),
        ((129,), (65,)),
        ((128,), (128,)),
        ((1, 100, 20), (1, 40, 20)),
    ]
]


def _product(kernels: list[KernelParams], shapes: list[Shape]) -> Iterator[tuple[KernelParams, Shape]]:
    """Each shape once, kernels in turn."""
    for i, shape in enumerate(shapes):
        yield kernels[i % len(kernels)], shape


def quick() -> list[tuple[KernelParams, Shape]]:
    """Twelve or more shapes for every kernel; its variants take turns."""
    cases: list[tuple[KernelParams, Shape]] = [
        (p, {"rows": n}) for i, p in enumerate(examples()) for n in (1, 2 + i % 3)
    ]
    cases += LINEAR_CASES
    cases += _product([DecodeAttentionParams(64, 3, 16, 256), DecodeAttentionParams(128, 4, 16, 64)], list(_DECODE))
    cases += _product([PrefillAttentionParams(64, 2, 16), PrefillAttentionParams(128, 1, 16)], list(_PREFILL))
    cases += [
        (RopeAppendParams(d, 16), {"tokens": t, "heads": h, "kv_heads": kv})
        for d in (64, 128)
        for t, h, kv in ((1, 1, 1), (2, 4, 2), (5, 9, 3), (16, 3, 1), (17, 2, 2), (33, 1, 1))
    ]
    return cases


def full() -> Iterator[tuple[KernelParams, Shape]]:
    """The long matrix: every variant at every shape (make soak)."""
    yield from linear_matrix()
    for d in (64, 128):
        for group in (1, 3, 8):
            for shape in _DECODE:
                yield DecodeAttentionParams(d, group, 16, 256), shape
            for shape in _PREFILL:
                yield PrefillAttentionParams(d, group, 16), shape
