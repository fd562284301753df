"""Rounding that makes up for itself (Frantar et al., GPTQ: arXiv 2210.17323): columns of a weight are rounded in turn,
and what one loses is put on those that are still to come, as far as the inputs of a text go together.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llmc.ir.arrays import Array
from llmc.ir.formats import Numbers
from llmc.ir.quantise import Quantised, nearest, quantise

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
_DAMPING = 0.01  # of the mean of the diagonal, added to it
_BLOCK = 128  # columns between updates of all that follow, where a scale is of a whole row


def gptq(weight: F32, hessian: F64, numbers: Numbers) -> Quantised:
    """A weight [N, K], of inputs whose products sum to `hessian` [K, K]. A group's scale is that of what its columns
    are by then; one to a row is that of the weight as it is given."""
    size = numbers.group or _BLOCK
    rest = weight.astype(np.float32)
    upper = _inverse_factor(hessian).astype(np.float32)
    whole = quantise(weight, numbers) if not numbers.group else None
    codes: list[Array] = []
    scales: list[F32] = []
    offsets: list[Array] = []
    for start in range(0, weight.shape[1], size):
        stop = min(start + size, weight.shape[1])
        found = whole or quantise(rest[:, start:stop], numbers)
        taken, errors = _columns(rest[:, start:stop], upper[start:stop, start:stop], found)
        codes.append(taken)
        rest[:, stop:] -= errors @ upper[start:stop, stop:]
        if whole is None or start == 0:
            scales.append(found.scales)
            offsets += [] if found.offsets is None else [found.offsets]
    return Quantised(
        numbers,
        np.concatenate(codes, 1),
        np.concatenate(scales, 1),
        np.concatenate(offsets, 1) if offsets else None,
    )


def _columns(block: F32, upper: F32, found: Quantised) -> tuple[Array, F32]:
    """Codes of a block's columns in its one group, and the error that each hands on."""
    block = block.copy()
    errors = np.zeros_like(block)
    codes = []
    offset = None if found.offsets is None else found.offsets[:, 0]
    for at in range(block.shape[1]):
        column = block[:, at]
        code = nearest(column[:, None], found.scales[:, 0], offset, found.numbers)
        value = _values(code, found)[:, 0]
        errors[:, at] = (column - value) / upper[at, at]
        block[:, at + 1 :] -= np.outer(errors[:, at], upper[at, at + 1 :])
        codes.append(code)
    return np.concatenate(codes, 1), errors


def _values(code: Array, found: Quantised) -> F32:
    """Of one column in the first group."""
    offsets = None if found.offsets is None else found.offsets[:, :1]
    return Quantised(found.numbers, code, found.scales[:, :1], offsets).floats().astype(np.float32)


def _inverse_factor(hessian: F64) -> F64:
    """Upper triangular U with UᵀU the inverse; inputs that are always zero are given a weight of their own."""
    h = hessian.copy()
    diagonal = np.einsum("ii->i", h)
    diagonal[diagonal == 0] = 1.0
    diagonal += _DAMPING * diagonal.mean()
    lower = np.linalg.cholesky(np.linalg.inv(h))
    return np.asarray(lower.T)
