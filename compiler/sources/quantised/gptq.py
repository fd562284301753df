"""GPTQ as AutoGPTQ and GPTQModel write it: codes [K, N] packed along K, zero points along N, both into int32.

`checkpoint_format` "gptq" (the first) stores zero points less one, "gptq_v2" as they are. `g_idx` says which group each
column is in: out of order where columns were quantised in order of activation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llmc.compiler.sources.checkpoint import Rows, StoredDtype, StoredTensor
from llmc.compiler.sources.quantised.elements import in_words
from llmc.compiler.sources.quantised.kept import Array, Integers, scale_type
from llmc.compiler.sources.quantised.module import FLOATS, Module, Reading, columns, columns_f32
from llmc.compiler.sources.quantised.stated import Stated

_ZERO_LESS = {"gptq": 1, "gptq_v2": 0}


@dataclass(frozen=True)
class Gptq:
    """`zero_less`: what zero points are less by. `dynamic`: settings of modules by patterns, as GPTQModel's."""

    bits: int
    group: int
    symmetric: bool
    zero_less: int
    dynamic: tuple[tuple[str, Stated], ...] = ()
    title = "GPTQ"

    @staticmethod
    def of(stated: Stated) -> Gptq:
        """SourceError for what is stored otherwise."""
        layout = stated.get("checkpoint_format", "format", default="gptq")
        if stated.get("is_marlin_format"):
            layout = "marlin"
        if layout not in _ZERO_LESS:
            raise stated.refusal(f"the {layout} layout is not supported: expected gptq or gptq_v2")
        gptq = Gptq(*_grid(stated), bool(stated.get("sym", default=True)), _ZERO_LESS[layout])
        return replace(gptq, dynamic=tuple(_dynamic(stated)))

    def read(self, module: Module) -> Reading | None:
        if "qweight" not in module:
            return None
        return self._at(module.path)._read(module)

    def _at(self, path: str) -> Gptq:
        for pattern, stated in self.dynamic:
            if re.match(pattern, path):
                return replace(Gptq(*_grid(stated), bool(stated.get("sym", default=True)), self.zero_less))
        return self

    def _read(self, module: Module) -> Reading:
        packed = module.matrix("qweight", StoredDtype.I32)
        per_word = 32 // self.bits
        n, k = packed.shape[1], packed.shape[0] * per_word
        groups = -(-k // self.group) if self.group else 1
        scales = module.take("scales", FLOATS, (groups, n))
        zeros = module.take("qzeros", (StoredDtype.I32,), (groups, -(-n // per_word)))
        grid = Integers(
            self.bits,
            (n, k),
            self.group,
            scale_type(scales.dtype, self.group),
            lambda rows: self._codes(packed, rows),
            lambda rows: columns_f32(scales, rows),
            lambda rows: self._shifts(zeros, rows),
            self.symmetric,
        )
        used = ["qweight", "scales", "qzeros"]
        if "g_idx" in module:
            order = module.take("g_idx", (StoredDtype.I32, StoredDtype.I64), (k,))
            used.append("g_idx")
            return grid.in_order(module, order, *used)
        return grid.reading(module, *used)

    def _codes(self, packed: StoredTensor, rows: Rows) -> Array:
        codes = in_words(columns(packed, rows).T, self.bits)
        return (codes.astype(np.int16) - (1 << self.bits - 1)).astype(np.int8)

    def _shifts(self, zeros: StoredTensor, rows: Rows) -> Array:
        """[N, groups]. A stored 15 of v1 is a zero point of 16: kernels add the one to what is unpacked."""
        per_word = 32 // self.bits
        first = rows[0] // per_word
        unpacked = in_words(columns(zeros, (first, -(-rows[1] // per_word))), self.bits)
        found = unpacked[:, rows[0] - first * per_word : rows[1] - first * per_word].T.astype(np.int16)
        return (1 << self.bits - 1) - (found + self.zero_less)


def _grid(stated: Stated) -> tuple[int, int]:
    """Bits and columns of a group, 0 for whole rows."""
    bits, group = stated.number("bits"), stated.number("group_size", default=128)
    if bits not in (4, 8):
        raise stated.refusal(f"weights of {bits} bits are not supported: expected 4 or 8")
    if group != -1 and group < 1:
        raise stated.refusal(f"group_size is {group}, expected -1 or more than 0")
    return bits, max(group, 0)


def _dynamic(stated: Stated) -> list[tuple[str, Stated]]:
    """Of modules that are stored otherwise than the rest ("-:" are the ones left as floats, which shows)."""
    found = []
    for pattern, settings in stated.get("dynamic", default={}).items():
        if not pattern.startswith("-:"):
            changed: Mapping[str, Any] = {**stated.settings, **settings}
            found.append((pattern.removeprefix("+:"), Stated(stated.method, changed, stated.where)))
            _grid(found[-1][1])
    return found
