"""The shapes kernels are tested at: tails in every dimension, one row, exact tiles, one beside them."""

from __future__ import annotations

from collections.abc import Iterator

from harness import Shape

from llmc.codegen.cuda.attention import DecodeAttentionParams, PrefillAttentionParams, RopeAppendParams
from llmc.codegen.cuda.gemm import GemmParams, HopperGemmParams, SkinnyGemmParams
from llmc.codegen.cuda.kernel import Epilogue, KernelParams
from llmc.codegen.cuda.rms_norm import RmsNormParams
from llmc.codegen.cuda.sample import SampleParams

_E = list(Epilogue)
# (M, N, K): one row, exact tiles, one more and one less, K shorter than a step, K with a tail, many steps.
_GEMM = [
    (1, 16, 8),
    (1, 48, 64),
    (2, 128, 72),
    (15, 144, 136),
    (16, 64, 200),
    (17, 32, 264),
    (63, 112, 56),
    (64, 128, 64),
    (65, 16, 520),
    (127, 80, 40),
    (128, 128, 128),
    (129, 144, 192),
    (130, 16, 328),
]
_SKINNY = [
    (1, 16, 8),
    (1, 32, 64),
    (1, 48, 264),
    (1, 576, 576),
    (2, 80, 72),
    (2, 32, 1024),
    (3, 112, 136),
    (3, 16, 2056),
    (4, 64, 256),
    (4, 144, 40),
    (4, 16, 1032),
    (4, 96, 520),
]
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


def _mnk(shapes: list[tuple[int, int, int]]) -> list[Shape]:
    return [{"M": m, "N": n, "K": k} for m, n, k in shapes]


def quick() -> list[tuple[KernelParams, Shape]]:
    """Twelve or more shapes for every kernel; its variants take turns."""
    rows = [{"rows": r} for r in (1, 2, 3, 5, 8, 13)]
    norms = [RmsNormParams(h, t, add) for h, t in ((576, 128), (8, 32), (1032, 64)) for add in (False, True)]
    cases: list[tuple[KernelParams, Shape]] = [(n, r) for i, n in enumerate(norms) for r in (rows[i], rows[-1 - i])]
    cases += _product(
        [GemmParams(128, 128, 2, 2, 3, e) for e in _E] + [GemmParams(64, 64, 2, 2, 4, e) for e in _E],
        _mnk(_GEMM),
    )
    cases += _product(
        [HopperGemmParams(128, 4, e) for e in _E]
        + [HopperGemmParams(64, 2, e) for e in _E]
        + [HopperGemmParams(256, 3, Epilogue.NONE)],
        _mnk(_GEMM),
    )
    cases += _product([SkinnyGemmParams(4, 4, e) for e in _E] + [SkinnyGemmParams(4, 1, e) for e in _E], _mnk(_SKINNY))
    cases += [
        (SkinnyGemmParams(1, 1, Epilogue.NONE), {"M": 1, "N": 40, "K": 264}),
        (SkinnyGemmParams(8, 3, Epilogue.RESIDUAL), {"M": 7, "N": 24, "K": 136}),
    ]
    cases += _product([DecodeAttentionParams(64, 3, 16, 256), DecodeAttentionParams(128, 4, 16, 64)], list(_DECODE))
    cases += _product([PrefillAttentionParams(64, 2, 16), PrefillAttentionParams(128, 1, 16)], list(_PREFILL))
    cases += [
        (RopeAppendParams(d, 16), {"tokens": t, "heads": h, "kv_heads": kv})
        for d in (64, 128)
        for t, h, kv in ((1, 1, 1), (2, 4, 2), (5, 9, 3), (16, 3, 1), (17, 2, 2), (33, 1, 1))
    ]
    cases += [(p, {"rows": 5, "behind": 1}) for p in _SAMPLE]
    return cases


def full() -> Iterator[tuple[KernelParams, Shape]]:
    """The long matrix: every variant at every shape (make soak)."""
    for e in _E:
        for shape in _mnk(_GEMM):
            yield GemmParams(128, 128, 2, 2, 3, e), shape
            yield GemmParams(64, 64, 2, 2, 4, e), shape
            for n in (64, 128, 192, 256):
                yield HopperGemmParams(n, 4, e), shape
        for shape in _mnk(_SKINNY):
            for splits in (1, 2, 5):
                yield SkinnyGemmParams(4, splits, e), shape
    for d in (64, 128):
        for group in (1, 3, 8):
            for shape in _DECODE:
                yield DecodeAttentionParams(d, group, 16, 256), shape
            for shape in _PREFILL:
                yield PrefillAttentionParams(d, group, 16), shape
    for p in _SAMPLE:
        yield p, {"rows": 315, "behind": 2}
