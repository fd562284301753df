"""The linears that are tested: every tile, both ways through the slices, both formats, every epilogue; columns, K and
tokens with tails, one token, none at all, exact tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness import Shape
from linear_cases import CASES, epilogue

from llmc.codegen.cuda.linear.params import (
    CountedBy,
    LinearMmaParams,
    LinearParams,
    LinearShape,
    LinearTile,
    LinearWgmmaParams,
    Slices,
)
from llmc.ir.types import DType

P, S = Slices.PARALLEL, Slices.SEQUENTIAL
BF16, F16 = DType.BF16, DType.F16
TOKENS, ROWS = CountedBy.TOKENS, CountedBy.ROWS
# Warps over a tile of mma.sync.
WARPS = {8: (4, 1), 16: (4, 1), 32: (2, 2), 64: (2, 2), 128: (2, 4)}


def mma(
    case: str, width: int, k: int, slice_k: int, out: int, tokens: int, slices: Slices, stages: int,
    counted: CountedBy = TOKENS, dtype: DType = BF16, warps: tuple[int, int] | None = None,
) -> LinearMmaParams:  # fmt: skip
    shape = LinearShape(dtype, width, k, slice_k, CASES[case].gated)
    tile = LinearTile(out, tokens, slices)
    return LinearMmaParams(shape, tile, counted, stages, epilogue(case, width), *(warps or WARPS[tokens]))


def wgmma(
    case: str, width: int, k: int, slice_k: int, out: int, tokens: int, slices: Slices, stages: int,
    counted: CountedBy = TOKENS, dtype: DType = BF16,
) -> LinearWgmmaParams:  # fmt: skip
    shape = LinearShape(dtype, width, k, slice_k, CASES[case].gated)
    return LinearWgmmaParams(shape, LinearTile(out, tokens, slices), counted, stages, epilogue(case, width))


def _at(case: str, tokens: int, rows: int) -> Shape:
    return {"epilogue": case, "T": tokens, "rows": rows}


# What both instructions compute: (epilogue, width, K, slice, out, tokens of a tile, slices, stages, counted, dtype,
# tokens that count, rows of the bucket).
_BOTH = (
    ("plain", 64, 64, 64, 64, 8, S, 2, TOKENS, BF16, 8, 8),
    ("plain", 72, 264, 64, 64, 8, P, 3, ROWS, BF16, 1, 8),
    ("bf16", 65, 40, 64, 64, 8, S, 4, TOKENS, BF16, 5, 8),
    ("bias_residual", 100, 200, 128, 128, 8, P, 5, TOKENS, BF16, 0, 8),
    ("bias_residual", 75, 203, 64, 64, 16, S, 3, ROWS, BF16, 16, 16),
    ("wide_residual", 130, 392, 128, 128, 16, P, 2, TOKENS, BF16, 13, 32),
    ("softcap", 131, 8, 64, 64, 32, S, 2, TOKENS, BF16, 33, 64),
    ("bf16_residual", 77, 330, 192, 64, 32, P, 4, TOKENS, BF16, 31, 32),
    ("f16", 140, 520, 256, 128, 64, S, 3, TOKENS, F16, 65, 128),
    ("swiglu", 40, 136, 64, 128, 64, P, 3, TOKENS, BF16, 64, 64),
    ("swiglu", 24, 72, 64, 64, 128, S, 2, TOKENS, BF16, 129, 256),
    ("gated_residual", 37, 257, 128, 64, 128, P, 3, ROWS, F16, 127, 128),
    ("plain", 200, 320, 128, 128, 128, S, 3, TOKENS, BF16, 130, 140),
    ("gated_residual", 300, 64, 64, 64, 8, S, 2, TOKENS, BF16, 24, 24),
)
LINEAR_CASES: list[tuple[LinearParams, Shape]] = [
    (make(*row[:8], row[8], row[9]), _at(row[0], row[10], row[11])) for make in (mma, wgmma) for row in _BOTH
] + [
    (mma("plain", 96, 128, 64, 128, 16, S, 2, warps=(8, 1)), _at("plain", 20, 32)),
    (mma("plain", 640, 64, 64, 64, 32, S, 2, warps=(4, 1)), _at("plain", 70, 100)),
    (wgmma("f16", 200, 200, 256, 128, 256, S, 2, dtype=F16), _at("f16", 257, 300)),
    (wgmma("swiglu", 72, 520, 192, 64, 256, P, 3), _at("swiglu", 255, 256)),
    (mma("narrow_residual", 90, 72, 64, 64, 16, S, 2), _at("narrow_residual", 15, 16)),
    (wgmma("narrow_residual", 104, 136, 64, 64, 32, P, 3), _at("narrow_residual", 32, 32)),
    (wgmma("bf16", 1100, 64, 64, 64, 16, S, 2), _at("bf16", 40, 48)),
]


def linear_matrix() -> Iterator[tuple[LinearParams, Shape]]:
    """Every epilogue with every tile and way, at sizes with tails (make soak)."""
    for name in CASES:
        for tokens in (8, 16, 32, 64, 128, 256):
            for out in (64, 128):
                for slices in (P, S):
                    for count in (1, tokens - 1, tokens + 1):
                        shape = _at(name, count, -(-count // tokens) * tokens)
                        if tokens <= 128:
                            yield mma(name, 150, 204, 64, out, tokens, slices, 3), shape
                        if tokens <= 128 or slices is P:
                            yield wgmma(name, 150, 204, 64, out, tokens, slices, 3), shape


def _few(make: Callable[..., LinearParams]) -> list[tuple[LinearParams, Shape]]:
    """What the mutants of linear.cuh and of one instruction are shown: split and whole K, tails, blocks with nothing to
    do, more stages than steps and fewer."""
    return [
        (make("bias_residual", 75, 331, 128, 64, 8, P, 3), _at("bias_residual", 9, 24)),
        (make("swiglu", 40, 72, 128, 64, 64, P, 4), _at("swiglu", 65, 192)),
        (make("plain", 130, 384, 128, 128, 32, S, 2, ROWS), _at("plain", 33, 64)),
        (make("bf16", 600, 64, 64, 64, 8, S, 2), _at("bf16", 16, 24)),
        (make("plain", 64, 200, 256, 64, 128, S, 3), _at("plain", 0, 130)),
    ]


# Cases by the file that is mutated.
MUTATED: dict[str, list[tuple[LinearParams, Shape]]] = {
    "columns.cuh": [
        (mma("wide_residual", 38, 64, 64, 64, 8, S, 2), _at("wide_residual", 8, 8)),
        (mma("narrow_residual", 38, 64, 64, 64, 8, S, 2), _at("narrow_residual", 8, 8)),
        (mma("bf16_residual", 38, 64, 64, 64, 8, S, 2), _at("bf16_residual", 8, 8)),
    ],
    "linear.cuh": _few(mma),
    "linear_mma.cuh": _few(mma),
    "linear_wgmma.cuh": _few(wgmma),
}
