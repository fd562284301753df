"""Packing as the published tools do it, number by number: written from their descriptions, not from our readers."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def into_words(codes: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """Unsigned codes [A, B] as int32 [A, ceil(B / per word)]; `order`: which of a word's columns each place holds."""
    per_word = 32 // bits
    a, b = codes.shape
    words = torch.zeros(a, -(-b // per_word), dtype=torch.int64)
    for word in range(words.shape[1]):
        for place in range(per_word):
            column = word * per_word + (order[place] if order else place)
            if column < b:
                words[:, word] |= codes[:, column].to(torch.int64) << (bits * place)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def into_bytes(codes: Tensor, low_first: bool = True) -> Tensor:
    """4-bit codes [..., K] as uint8 [..., K / 2]."""
    even, odd = codes[..., 0::2].to(torch.uint8), codes[..., 1::2].to(torch.uint8)
    return even | (odd << 4) if low_first else (even << 4) | odd


def spread(values: Tensor, rows: int, columns: int, shape: tuple[int, int]) -> Tensor:
    """Values of blocks as a matrix of the blocks' elements."""
    return values.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[: shape[0], : shape[1]]


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
