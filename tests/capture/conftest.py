"""Captures of tiny random models, and HF eager as the oracle."""

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiny_models import config_of, eager_model, example, hf_logits, relative_error
from transformers import PreTrainedModel

from llmc.compiler.capture import hooks
from llmc.compiler.capture.capture import Captured, capture_with
from llmc.compiler.sources.checkpoint import Checkpoint, StoredDtype, StoredTensor, checkpoint_of
from llmc.compiler.sources.demo import fetch_demo
from llmc.compiler.sources.model_source import ModelSource
from llmc.compiler.sources.resolve import open_source
from llmc.ir.reference import run

hooks.install()

__all__ = ["config_of", "eager_model", "example", "hf_logits", "relative_error"]  # through the fixture `oracle`


def stored(name: str, tensor: torch.Tensor) -> StoredTensor:
    def read(rows: tuple[int, int] | None) -> NDArray[Any]:
        part = tensor if rows is None else tensor[rows[0] : rows[1]]
        return (part.view(torch.uint16) if tensor.dtype is torch.bfloat16 else part).numpy()

    dtype = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[tensor.dtype]
    return StoredTensor(name, StoredDtype(dtype), tuple(tensor.shape), "memory", read)


def checkpoint_from(model: PreTrainedModel, **changes: torch.Tensor | None) -> Checkpoint:
    """What save_pretrained would write: tied parameters once. `changes` replace, add or (None) drop tensors."""
    state: dict[str, torch.Tensor | None] = dict(model.state_dict())
    for tied in model.all_tied_weights_keys:
        state.pop(tied)
    state.update(changes)
    return checkpoint_of([stored(name, value.detach()) for name, value in state.items() if value is not None])


def our_logits(captured: Captured, ids: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[Any]:
    (logits,) = run(captured.graph, {"ids": ids, "positions": positions}, captured.read)
    assert isinstance(logits, np.ndarray)
    return logits


CaptureFamily = Callable[..., tuple[PreTrainedModel, Captured]]


@pytest.fixture
def oracle() -> ModuleType:
    """This module: configs, eager models, checkpoints of them, logits of either side."""
    return sys.modules[__name__]


@pytest.fixture(scope="session")
def capture_family() -> CaptureFamily:
    """capture_family("llama"): the family's eager model and its capture, made once."""

    @functools.cache
    def make(family: str) -> tuple[PreTrainedModel, Captured]:
        model = eager_model(config_of(family))
        return model, capture_with(config_of(family), lambda _: checkpoint_from(model))

    return make


@pytest.fixture(scope="session")
def smollm2() -> ModelSource:
    return open_source(str(fetch_demo("smollm2")))
