"""The two ops that HF's modeling code is made to call while it is traced. They have shapes and no kernels."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("llmc::mask", mutates_args=())
def mask(anchor: Tensor, batch: int, q_len: int, kv_len: int, window: int | None, chunk: int | None) -> Tensor:
    """A mask descriptor: stands for bool [batch, 1, q_len, kv_len]. `anchor` only carries the device."""
    raise NotImplementedError("llmc::mask is traced, never run")


@mask.register_fake
def _(anchor: Tensor, batch: int, q_len: int, kv_len: int, window: int | None, chunk: int | None) -> Tensor:
    return anchor.new_empty((batch, 1, q_len, kv_len), dtype=torch.bool)


@torch.library.custom_op("llmc::attention", mutates_args=())
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """q [B, Hq, S, D], k [B, Hkv, S, D], v [B, Hkv, S, Dv], mask a descriptor -> [B, S, Hq, Dv]."""
    raise NotImplementedError("llmc::attention is traced, never run")


@attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    batch, heads, seq, _ = q.shape
    return q.new_empty((batch, seq, heads, v.shape[-1]))
