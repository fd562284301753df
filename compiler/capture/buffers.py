"""Values of the buffers that a module computes when it is built (rotary frequencies, embedding scales).

On meta they have none. Each gets storage on the CPU, and HF's own `_init_weights` of the model that owns it fills
it, as from_pretrained does; parameters stay on meta.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from llmc.compiler.capture.errors import CaptureError

MOST_BYTES = 2**30  # of one computed buffer: sines and cosines of 131,072 positions by 1,024 are half of it


def evaluate_buffers(model: PreTrainedModel, names: set[str]) -> dict[str, NDArray[Any]]:
    """Values by name. CaptureError names a buffer that is too large to compute, or that `_init_weights` leaves unset.

    The module's buffers are put back as they were.
    """
    for name in sorted(names):
        if (buffer := model.get_buffer(name)).nbytes > MOST_BYTES:
            raise CaptureError(
                f"buffer {name} {list(buffer.shape)}: computing it takes {buffer.nbytes:,} bytes, "
                f"at most {MOST_BYTES:,} expected: is a size in config.json wrong?"
            )
    # Filled twice, from two different starts: what comes out equal was really set.
    low, high = (_filled(model, names, start) for start in (0, 1))
    for name in sorted(names):
        if low[name].is_floating_point() and bool(((low[name] != low[name]) | (low[name] == torch.inf)).any()):
            raise CaptureError(f"buffer {name}: infinite or NaN as computed: is a number in config.json wrong?")
        if not torch.equal(low[name], high[name]):
            raise CaptureError(f"buffer {name} has no value: its model does not compute it in _init_weights")
    return {name: low[name].numpy() for name in sorted(names)}


def _filled(model: PreTrainedModel, names: set[str], start: int) -> dict[str, Tensor]:
    kept = {name: model.get_buffer(name) for name in names}
    for name, buffer in kept.items():
        module, leaf = _owner(model, name)
        module._buffers[leaf] = torch.full(buffer.shape, start, dtype=buffer.dtype, device="cpu")
    try:
        for path in sorted({name.rpartition(".")[0] for name in names}):
            _owning_model(model, path)._init_weights(model.get_submodule(path))
        return {name: model.get_buffer(name) for name in names}
    finally:
        for name, buffer in kept.items():
            module, leaf = _owner(model, name)
            module._buffers[leaf] = buffer


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


def _owning_model(model: PreTrainedModel, path: str) -> Any:
    """The innermost PreTrainedModel around a module: the one whose `_init_weights` knows it."""
    owner: nn.Module = model
    at = ""
    for part in path.split("."):
        at = f"{at}.{part}" if at else part
        module = model.get_submodule(at)
        if isinstance(module, PreTrainedModel):
            owner = module
    return owner
