"""The shapes kernels are tested at: tails in every dimension, one row, exact tiles, one beside them."""

from __future__ import annotations

from collections.abc import Iterator

from attention_shapes import ATTENTION_CASES, attention_matrix
from harness import Shape
from linear_shapes import LINEAR_CASES, linear_matrix

from llmc.codegen.cuda.kernel import KernelParams
from llmc.codegen.cuda.rms_norm import RmsNormParams
<<<<<<< HEAD
from llmc.codegen.cuda.sample import SampleParams

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

# ids with text, columns, threads, list: one id, tails of 4 and of 256, one, two and three digits of an id
_SAMPLE = [
    SampleParams(*p)
    for p in (
        (1, 1, 32, 32),
        (3, 4, 32, 32),
        (7, 7, 32, 32),
        (97, 100, 64, 64),
        (255, 255, 64, 64),
        (256, 256, 64, 128),
        (257, 260, 96, 96),
        (512, 640, 64, 64),
        (1000, 1001, 64, 64),
        (1025, 1025, 128, 256),
        (2047, 2048, 64, 1024),
        (4096, 4096, 128, 128),
    )
]


def _product(kernels: list[KernelParams], shapes: list[Shape]) -> Iterator[tuple[KernelParams, Shape]]:
    """Each shape once, kernels in turn."""
    for i, shape in enumerate(shapes):
        yield kernels[i % len(kernels)], shape
=======
from llmc.codegen.cuda.rope_append import RopeAppendParams
>>>>>>> attn


def quick() -> list[tuple[KernelParams, Shape]]:
    """Twelve or more shapes for every kernel; its variants take turns."""
    rows = [{"rows": r} for r in (1, 2, 3, 5, 8, 13)]
    norms = [RmsNormParams(h, t, add) for h, t in ((576, 128), (8, 32), (1032, 64)) for add in (False, True)]
    cases: list[tuple[KernelParams, Shape]] = [(n, r) for i, n in enumerate(norms) for r in (rows[i], rows[-1 - i])]
    cases += LINEAR_CASES
    cases += ATTENTION_CASES
    cases += [
        (RopeAppendParams(d, 16), {"tokens": t, "heads": h, "kv_heads": kv})
        for d in (64, 128)
        for t, h, kv in ((1, 1, 1), (2, 4, 2), (5, 9, 3), (16, 3, 1), (17, 2, 2), (33, 1, 1))
    ]
    cases += [(p, {"rows": 5}) for p in _SAMPLE]
    return cases


def full() -> Iterator[tuple[KernelParams, Shape]]:
    """The long matrix: every variant at every shape (make soak)."""
    yield from linear_matrix()
<<<<<<< HEAD
    for d in (64, 128):
        for group in (1, 3, 8):
            for shape in _DECODE:
                yield DecodeAttentionParams(d, group, 16, 256), shape
            for shape in _PREFILL:
                yield PrefillAttentionParams(d, group, 16), shape
    for p in _SAMPLE:
        yield p, {"rows": 315}
=======
    yield from attention_matrix()
>>>>>>> attn
