"""Four seams of transformers through which its modeling code calls llmc while it is traced.

    attention   AttentionInterface["llmc"]      every attention call becomes one llmc::attention
    masks       AttentionMaskInterface["llmc"]  every mask becomes one llmc::mask descriptor
    experts     ExpertsInterface["llmc"]        mixtures of experts (refused for now, by module)
    kernels     use_kernel_func_from_hub_with_fallback, the decorator of scans (refused for now, by module)

The first three are registries, looked up at each call under the implementation's name. The fourth decorates
functions when a modeling file is imported, so `install` must come before that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, integrations
from transformers.integrations import hub_kernels
from transformers.integrations.moe import ExpertsInterface

from llmc.compiler.capture import torch_ops
from llmc.compiler.capture.errors import CaptureError
from llmc.compiler.capture.masks import describe
from llmc.compiler.capture.tracing import current_trace

IMPLEMENTATION = "llmc"
"""What attn_implementation and experts_implementation are set to."""

_DECORATOR = "use_kernel_func_from_hub_with_fallback"

# Arguments of an attention call that say how to run it or repeat what the mask says.
_WITHOUT_EFFECT = frozenset(
    {
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "is_causal",  # the mask descriptor says it
        "max_length_k",
        "max_length_q",
        "num_items_in_batch",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "sliding_window",  # the mask descriptor says it
        "use_cache",
    }
)


def install() -> None:
    """Register the hooks; calling it again changes nothing."""
    AttentionInterface.register(IMPLEMENTATION, attention_hook)
    AttentionMaskInterface.register(IMPLEMENTATION, mask_hook)
    ExpertsInterface.register(IMPLEMENTATION, experts_hook)
    original = getattr(hub_kernels, _DECORATOR)
    if not hasattr(original, "llmc_original"):
        seam = _kernel_seam(original)
        setattr(hub_kernels, _DECORATOR, seam)
        setattr(integrations, _DECORATOR, seam)


def attention_hook(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **extra: object,
) -> tuple[Tensor, None]:
    """transformers' attention interface: q [B, Hq, S, D], k and v with their own, unrepeated heads."""
    trace = current_trace()
    where = trace.module if trace else type(module).__name__
    for name, given in extra.items():
        if given is not None and name not in _WITHOUT_EFFECT:
            raise CaptureError(f"{where}: attention argument {name} is not supported")
    if attention_mask is None:
        raise CaptureError(f"{where}: attention without a mask, so what it may see is unknown")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if not isinstance(scale, float | int):
        raise CaptureError(f"{where}: attention scale is a {type(scale).__name__}, expected a number")
    if softcap is not None and not isinstance(softcap, float | int):
        raise CaptureError(f"{where}: attention softcap is a {type(softcap).__name__}, expected a number")
    if trace:
        trace.num_attentions += 1
    sinks = None if s_aux is None else s_aux.reshape(-1)
    out = torch_ops.attention(
        query, key, value, attention_mask, sinks, float(scale), float(softcap) if softcap else None
    )
    return cast(Tensor, out), None


def mask_hook(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    device: torch.device | None = None,
    **_how: object,
) -> Tensor:
    """transformers' mask interface: a descriptor in place of bool [B, 1, S, S]."""
    trace = current_trace()
    where = trace.module if trace else "the model"
    if mask_function is None or attention_mask is not None:
        raise CaptureError(f"{where}: an attention mask that depends on padding is not supported")
    if (isinstance(q_offset, int) and q_offset) or (isinstance(kv_offset, int) and kv_offset):
        raise CaptureError(f"{where}: an attention mask offset by {q_offset}, {kv_offset} is not supported")
    mask = describe(mask_function, where)
    if trace:
        trace.num_masks += 1
    anchor = torch.zeros(1, device=device)
    return cast(Tensor, torch_ops.mask(anchor, batch_size, q_length, kv_length, mask.window, mask.chunk))


def experts_hook(module: nn.Module, *_args: object, **_kwargs: object) -> Tensor:
    """transformers' experts interface."""
    trace = current_trace()
    where = trace.module if trace else type(module).__name__
    raise CaptureError(f"{where}: mixtures of experts ({type(module).__name__}) are not supported yet")


def _kernel_seam(original: Callable[..., Any]) -> Callable[..., Any]:
    """The decorator, whose functions refuse while a trace runs and are transformers' own otherwise."""

    @functools.wraps(original)
    def seam(func_name: str, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        decorate = original(func_name, *args, **kwargs)

        def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
            theirs = decorate(function)

            @functools.wraps(theirs)
            def wrapped(*a: Any, **k: Any) -> Any:
                if trace := current_trace():
                    raise CaptureError(f"{trace.module}: {func_name} (a scan over positions) is not supported yet")
                return theirs(*a, **k)

            return wrapped

        return decorator

    seam.llmc_original = original  # type: ignore[attr-defined]
    return seam
