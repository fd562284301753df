"""The source as transformers computes it, in float32: what an engine's logits are measured against."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, initialization, modeling_gguf_pytorch_utils

from llmc.codegen.weights import Evaluator, SourceReader
from llmc.compiler.capture.errors import CaptureError
from llmc.compiler.capture.parameters import bind, stored_values
from llmc.compiler.sources.checkpoint import Checkpoint
from llmc.compiler.sources.model_config import one_line
from llmc.compiler.sources.model_source import ModelSource, SourceFormat
from llmc.compiler.verify.errors import VerificationError
from llmc.compiler.verify.logits import Logits
from llmc.ir.ops.constant import Source

_OPTIONS: dict[str, Any] = {"attn_implementation": "eager", "trust_remote_code": False, "dtype": torch.float32}


def reference_model(source: ModelSource) -> PreTrainedModel:
    """transformers' own model in float32, loaded by transformers itself."""
    where: dict[str, Any] = {"pretrained_model_name_or_path": str(source.path)}
    if source.format is SourceFormat.GGUF:
        where = {"pretrained_model_name_or_path": str(source.path.parent), "gguf_file": source.path.name}
        where["config"] = copy.deepcopy(source.config)  # with the facts that transformers does not find in the file
    transformers.utils.logging.disable_progress_bar()
    try:
        # of its bars only this one ignores the line above
        with patch.object(modeling_gguf_pytorch_utils, "tqdm", lambda tensors, desc: tensors):
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(**where, **_OPTIONS, local_files_only=True)
    except Exception as error:  # transformers refuses checkpoints in whatever way it likes
        raise VerificationError(f"{source.path}: transformers cannot load it: {one_line(error)}") from error
    model.train(False)
    return model


@dataclass(frozen=True)
class SourceModel:
    """A source as a module of transformers, and its checkpoint's tensors."""

    module: PreTrainedModel
    reader: SourceReader


def source_model(source: ModelSource) -> SourceModel:
    """transformers' own modeling code in float32, with the values that a build reads: in seconds, and of checkpoints
    too that transformers does not read itself. `reference_model` is what holds our reading against theirs."""
    try:
        with initialization.no_init_weights():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(copy.deepcopy(source.config), **_OPTIONS)
        checkpoint = source.checkpoint(model)
        exprs = bind(model, checkpoint).exprs
    except CaptureError as error:
        raise VerificationError(f"{source.path}: {error}") from error
    except Exception as error:  # as above
        raise VerificationError(f"{source.path}: transformers cannot build it: {one_line(error)}") from error
    reader = _Reader(checkpoint)
    evaluator = Evaluator(reader)
    tensors = [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if n in exprs)]
    with torch.no_grad():
        for name, tensor in tensors:
            values = torch.from_numpy(np.array(evaluator.whole(exprs[name])))
            if tensor.is_meta:  # `bind` untied it
                path, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(path), leaf, nn.Parameter(values, requires_grad=False))
            else:
                tensor.copy_(values)
    model.train(False)
    model.requires_grad_(False)
    return SourceModel(model, reader)


def reference_logits(model: PreTrainedModel, ids: list[int]) -> Logits:
    """[T, vocab] float32."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), use_cache=False)
    logits: Logits = out.logits[0].float().numpy()
    return logits


@dataclass(frozen=True)
class _Reader:
    """codegen.weights.SourceReader."""

    checkpoint: Checkpoint

    def read(self, source: Source, rows: tuple[int, int] | None) -> npt.NDArray[np.generic]:
        return stored_values(self.checkpoint, source, rows)
