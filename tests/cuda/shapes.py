"""The shapes kernels are tested at: tails in every dimension, one row, exact tiles, one beside them."""

from __future__ import annotations

from collections.abc import Iterator

import rows_lab
from attention_shapes import ATTENTION_CASES, attention_matrix
from harness import Shape
from linear_shapes import LINEAR_CASES, linear_matrix

from llmc.codegen.cuda.kernel import KernelParams
from llmc.codegen.cuda.sample.params import SampleParams

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
SAMPLE_EDGES: tuple[KernelParams, Shape] = (SampleParams(1000, 1000, 64, 64), {"rows": 0, "behind": 0})


def quick() -> list[tuple[KernelParams, Shape]]:
    """Twelve or more shapes for every kernel; its variants take turns."""
    cases: list[tuple[KernelParams, Shape]] = [
        (p, {"rows": n}) for i, p in enumerate(rows_lab.bodies()) for n in (1, 2 + i % 3)
    ]
    cases += LINEAR_CASES
    cases += ATTENTION_CASES
    cases += [(p, {"rows": 5, "behind": 1 - i % 2}) for i, p in enumerate(_SAMPLE)]
    cases += [SAMPLE_EDGES]
    return cases


def full() -> Iterator[tuple[KernelParams, Shape]]:
    """The long matrix: every variant at every shape (make soak)."""
    yield from linear_matrix()
    yield from attention_matrix()
    for p in _SAMPLE:
        yield p, {"rows": 315, "behind": 2}
