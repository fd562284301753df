"""gpt-oss: experts in MXFP4, stacked: blocks [E, N, K / 32, 16 bytes] and scales [E, N, K / 32]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmc.compiler.sources.checkpoint import QuantisedTensor, Rows, StoredDtype, StoredTensor
from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.quantised.elements import F32, nibbles
from llmc.compiler.sources.quantised.kept import Array
from llmc.compiler.sources.quantised.module import Module, Reading, rows_f32
from llmc.compiler.sources.quantised.stated import Stated
from llmc.ir.formats import Numbers, Part
from llmc.ir.types import DType

NUMBERS = Numbers(DType.F4_E2M1, 32, DType.BF16)


@dataclass(frozen=True)
class Mxfp4:
    title = "MXFP4"

    @staticmethod
    def of(stated: Stated) -> Mxfp4:
        return Mxfp4()

    def read(self, module: Module) -> Reading | None:
        """As the parameter of transformers' module, [E, K, N], which is that of x @ w: rows are experts."""
        if "blocks" not in module:
            return None
        matrices = expert_rows(module)
        e, n = module.tensors["blocks"].shape[:2]

        def read(experts: Rows | None) -> F32:
            first, last = experts or (0, e)
            values = matrices.read_f32((first * n, last * n))
            return np.ascontiguousarray(values.reshape(last - first, n, -1).transpose(0, 2, 1))

        shape = (e, matrices.shape[1], n)
        tensor = StoredTensor(matrices.name, StoredDtype.F32, shape, matrices.origin, read)
        return Reading(tensor, frozenset({"blocks", "scales"}), "experts are one parameter of three dimensions")


def expert_rows(module: Module) -> QuantisedTensor:
    """The experts' matrices [N, K] one after the other, [E * N, K], in the numbers that they are stored in."""
    blocks = module.take("blocks", (StoredDtype.U8,))
    if len(blocks.shape) != 4 or blocks.shape[3] != 16:
        raise SourceError(
            f"{blocks.origin}: tensor {blocks.name} has shape {list(blocks.shape)}, expected [E, N, K / 32, 16]"
        )
    e, n, groups, _ = blocks.shape
    scales = module.take("scales", (StoredDtype.U8, StoredDtype.F8_E8M0), (e, n, groups))

    def read(part: Part, rows: Rows | None) -> Array:
        start, stop = rows or (0, e * n)
        experts = (start // n, -(-stop // n))
        found: Array = nibbles(blocks.bits(experts)) if part is Part.DATA else rows_f32(scales, experts)
        return found.reshape((experts[1] - experts[0]) * n, -1)[start - experts[0] * n : stop - experts[0] * n]

    return QuantisedTensor(module.name(""), NUMBERS, (e * n, groups * 32), f"{blocks.origin}:{blocks.name}", read)
