"""The shapes kernels are tested at: tails in every dimension, one row, exact tiles, one beside them."""

from __future__ import annotations

from collections.abc import Iterator

from attention_shapes import ATTENTION_CASES, attention_matrix
from harness import Shape
from linear_shapes import LINEAR_CASES, linear_matrix

from llmc.codegen.cuda.kernel import KernelParams
from llmc.codegen.cuda.rope_append import RopeAppendParams
from llmc.codegen.cuda.rows_examples import examples


def quick() -> list[tuple[KernelParams, Shape]]:
    """Twelve or more shapes for every kernel; its variants take turns."""
    cases: list[tuple[KernelParams, Shape]] = [
        (p, {"rows": n}) for i, p in enumerate(examples()) for n in (1, 2 + i % 3)
    ]
    cases += LINEAR_CASES
    cases += ATTENTION_CASES
    cases += [
        (RopeAppendParams(d, 16), {"tokens": t, "heads": h, "kv_heads": kv})
        for d in (64, 128)
        for t, h, kv in ((1, 1, 1), (2, 4, 2), (5, 9, 3), (16, 3, 1), (17, 2, 2), (33, 1, 1))
    ]
    return cases


def full() -> Iterator[tuple[KernelParams, Shape]]:
    """The long matrix: every variant at every shape (make soak)."""
    yield from linear_matrix()
    yield from attention_matrix()
