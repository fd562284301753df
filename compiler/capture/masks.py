"""From transformers' mask functions to a mask descriptor.

transformers composes a mask from closures (`and_masks(sliding_window_overlay(8), causal_mask_function)`). They are
walked, not called: each leaf is known by name or refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import masking_utils

from llmc.compiler.capture.errors import CaptureError
from llmc.ir.ops.attention import Mask


@dataclass(frozen=True)
class _Seen:
    causal: bool = False
    window: int | None = None
    chunk: int | None = None

    def both(self, other: _Seen) -> _Seen:
        """The intersection: a key is visible if both see it."""
        return _Seen(self.causal or other.causal, _smaller(self.window, other.window), _one(self.chunk, other.chunk))


def describe(mask_function: Callable[..., Any], module: str) -> Mask:
    """The descriptor of a mask function. CaptureError names the part that has none."""
    seen = _walk(mask_function, module)
    if not seen.causal:
        raise CaptureError(f"{module}: attention that is not causal ({_name(mask_function)}) is not supported")
    return Mask(seen.window, seen.chunk)


def _walk(function: Callable[..., Any], module: str) -> _Seen:
    name = _name(function)
    cells = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
    match name:
        case "causal_mask_function":
            return _Seen(causal=True)
        case "sliding_window_overlay":
            return _Seen(window=_size(cells["sliding_window"], name, module))
        case "chunked_overlay":
            # its left padding comes from an attention mask, and the hook refuses those
            return _Seen(chunk=_size(cells["chunk_size"], name, module))
        case "and_masks":
            seen = _Seen()
            for part in cells["mask_functions"]:
                seen = seen.both(_walk(part, module))
            return seen
        case "remap_positions_for_packed_sequence":
            # explicit position ids make transformers look for packed sequences; ours never are
            return _walk(cells["mask_function"], module)
        case "packed_sequence_mask_function":
            return _Seen()
    raise CaptureError(
        f"{module}: attention mask part {name} is not known; teach it to compiler/capture/masks.py and "
        "ir/ops/attention.py"
    )


def _name(function: Callable[..., Any]) -> str:
    qualified = getattr(function, "__qualname__", type(function).__name__)
    outer = str(qualified).split(".<locals>")[0]
    home = getattr(function, "__module__", None)
    return outer if home == masking_utils.__name__ else f"{home}.{outer}"


def _size(value: object, name: str, module: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CaptureError(f"{module}: {name} of size {value!r}, expected a positive integer")
    return value


def _smaller(a: int | None, b: int | None) -> int | None:
    return min((x for x in (a, b) if x is not None), default=None)


def _one(a: int | None, b: int | None) -> int | None:
    if a is not None and b is not None and a != b:
        raise CaptureError(f"attention in chunks of both {a} and {b} is not supported")
    return a if a is not None else b
