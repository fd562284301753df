"""AWQ as AutoAWQ's gemm layout: codes [K, N] and zero points [groups, N], both packed along N into int32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmc.compiler.sources.checkpoint import Rows, StoredDtype, StoredTensor
from llmc.compiler.sources.quantised.elements import in_words
from llmc.compiler.sources.quantised.kept import Array, Integers, scale_type
from llmc.compiler.sources.quantised.module import FLOATS, Module, Reading, columns, columns_f32
from llmc.compiler.sources.quantised.stated import Stated

_BITS = 4
_PER_WORD = 8
# Where in a word, from its lowest bits, each of eight columns lies (AutoAWQ's AWQ_REVERSE_ORDER).
_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class Awq:
    group: int
    title = "AWQ"

    @staticmethod
    def of(stated: Stated) -> Awq:
        """SourceError for what is stored otherwise."""
        version = str(stated.get("version", default="gemm")).lower()
        if version != "gemm":
            raise stated.refusal(f"the {version} layout is not supported: expected gemm")
        bits, group = stated.number("bits", "w_bit"), stated.number("group_size", "q_group_size", default=128)
        if bits != _BITS:
            raise stated.refusal(f"weights of {bits} bits are not supported: expected 4")
        if group != -1 and group < 1:
            raise stated.refusal(f"group_size is {group}, expected -1 or more than 0")
        return Awq(max(group, 0))

    def read(self, module: Module) -> Reading | None:
        if "qweight" not in module:
            return None
        packed = module.matrix("qweight", StoredDtype.I32)
        k, n = packed.shape[0], packed.shape[1] * _PER_WORD
        groups = -(-k // self.group) if self.group else 1
        scales = module.take("scales", FLOATS, (groups, n))
        zeros = module.take("qzeros", (StoredDtype.I32,), (groups, n // _PER_WORD))
        grid = Integers(
            _BITS,
            (n, k),
            self.group,
            scale_type(scales.dtype, self.group),
            lambda rows: _unpacked(packed, rows).astype(np.int8) - np.int8(8),
            lambda rows: columns_f32(scales, rows),
            lambda rows: 8 - _unpacked(zeros, rows).astype(np.int16),
            symmetric=False,
        )
        return grid.reading(module, "qweight", "scales", "qzeros")


def _unpacked(packed: StoredTensor, rows: Rows) -> Array:
    """Columns [start, stop) as rows."""
    first = rows[0] // _PER_WORD
    numbers = in_words(columns(packed, (first, -(-rows[1] // _PER_WORD))), _BITS)
    in_order = numbers.reshape(len(numbers), -1, _PER_WORD)[:, :, _ORDER].reshape(len(numbers), -1)
    return np.ascontiguousarray(in_order[:, rows[0] - first * _PER_WORD : rows[1] - first * _PER_WORD].T)
