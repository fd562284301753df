"""What torch's libraries take for the same operation on the same card: cuBLAS for linears, SDPA for attention.

Same shapes and formats, fresh random operands. What differs: SDPA's keys and values are contiguous [sequence, head,
position, dim], ours lie in scattered blocks of 32 positions; torch's linear writes bf16, our plain one float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness import Shape

from llmc.codegen.cuda.attention.params import DecodeAttentionParams, PrefillAttentionParams
from llmc.codegen.cuda.kernel import KernelParams
from llmc.codegen.cuda.linear.params import LinearMmaParams, LinearWgmmaParams
from llmc.ir.types import DType


@dataclass(frozen=True)
class Library:
    """`run` queues the work on the default stream and returns its result, which may be dropped."""

    name: str
    run: Callable[[], Any]


def torch_on_card() -> tuple[Any, str]:
    """(torch, its version), or (None, why it cannot be compared with)."""
    try:
        import torch
    except ImportError as error:
        return None, f"torch is not installed ({error})"
    except Exception as error:  # a torch of another CUDA fails in ways of its own
        return None, f"torch cannot be imported: {type(error).__name__}: {error}"
    if not torch.cuda.is_available():
        return None, f"torch {torch.__version__} sees no GPU"
    return torch, f"torch {torch.__version__}, CUDA {torch.version.cuda}"


def library_for(params: KernelParams, shape: Shape, torch: Any, device: str) -> Library | None:
    """The library's way to do a case, warmed up; None for what no library has as one operation."""
    if isinstance(params, LinearMmaParams | LinearWgmmaParams):
        library = _linear(params, int(shape["T"]), torch, device)  # type: ignore[arg-type]
    elif isinstance(params, DecodeAttentionParams | PrefillAttentionParams):
        library = _attention(params, shape, torch, device)
    else:
        return None
    if library is not None:
        for _ in range(3):  # handles, workspaces, heuristics
            library.run()
    return library


def _dtype(dtype: DType, torch: Any) -> Any:
    return torch.bfloat16 if dtype is DType.BF16 else torch.float16


def _linear(params: LinearMmaParams | LinearWgmmaParams, tokens: int, torch: Any, device: str) -> Library | None:
    s = params.shape
    if s.gated:
        return None
    kind = {"dtype": _dtype(s.dtype, torch), "device": device}
    x, w = torch.randn(tokens, s.k, **kind), torch.randn(s.width, s.k, **kind) * s.k**-0.5
    return Library("torch.nn.functional.linear", lambda: torch.nn.functional.linear(x, w))


def _attention(
    params: DecodeAttentionParams | PrefillAttentionParams, shape: Shape, torch: Any, device: str
) -> Library | None:
    """For sequences of one length that all have one new token, or are all new."""
    layer, contexts, rows = params.layer, shape["contexts"], shape["rows"]
    assert isinstance(contexts, tuple) and isinstance(rows, tuple)
    plain = not (layer.window or layer.chunk or layer.softcap or layer.sinks or layer.alibi)
    if not plain or len(set(contexts)) != 1 or len(set(rows)) != 1 or rows[0] not in (1, contexts[0]):
        return None
    kind = {"dtype": _dtype(layer.dtype, torch), "device": device}
    q = torch.randn(len(rows), layer.q_heads, rows[0], layer.head_dim, **kind)
    k = torch.randn(len(rows), layer.kv_heads, contexts[0], layer.head_dim, **kind)
    v = torch.randn(len(rows), layer.kv_heads, contexts[0], layer.value_dim, **kind)
    causal = rows[0] > 1

    def run() -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=layer.group > 1)

    return Library("scaled_dot_product_attention, contiguous KV", run)
