"""The source as transformers computes it, in float32: what an engine's logits are measured against."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, initialization, modeling_gguf_pytorch_utils

from llmc.codegen.weights import Evaluator, SourceReader, sources
from llmc.compiler.capture.errors import CaptureError
from llmc.compiler.capture.parameters import bind, stored_values
from llmc.compiler.roofline.text import size
from llmc.compiler.sources.checkpoint import Checkpoint
from llmc.compiler.sources.model_config import one_line
from llmc.compiler.sources.model_source import ModelSource, SourceFormat
from llmc.compiler.verify.corpus import PIECE_TOKENS
from llmc.compiler.verify.errors import VerificationError
from llmc.compiler.verify.logits import Logits
from llmc.ir.ops.constant import Source, WeightExpr
from llmc.runtime.cpu.memory import available_bytes

_BESIDE = 256 << 20  # bytes that torch and an engine take whatever the model
_LOGITS = 6 * 4 * PIECE_TOKENS  # bytes for each token of the vocabulary: both sides' in float32, and temporaries
_OPTIONS: dict[str, Any] = {"attn_implementation": "eager", "trust_remote_code": False, "dtype": torch.float32}


def reference_model(source: ModelSource) -> PreTrainedModel:
    """transformers' own model in float32, loaded by transformers itself; of a quantised folder, for which it would ask
    for packages, with our reading of the weights."""
    if source.config_file is not None and source.config_file.quantisation is not None:
        return source_model(source).module
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
    """A source as a module of transformers, its checkpoint's tensors, and what its parameters are made of."""

    module: PreTrainedModel
    reader: SourceReader
    exprs: Mapping[str, WeightExpr]

    @property
    def names(self) -> Mapping[tuple[str, ...], str]:
        """Of parameters, by the tensors of the checkpoint that they are made of."""
        made = {name: self.exprs[name] for name, _ in self.module.named_parameters()}
        return {tuple(dict.fromkeys(s.name for s in sources(expr))): name for name, expr in made.items()}


def source_model(source: ModelSource) -> SourceModel:
    """transformers' own modeling code in float32, with the values that a build reads: in seconds, and of checkpoints
    too that transformers does not read itself. `reference_model` is what holds our reading against theirs. Raises
    VerificationError, before anything is read where there is no room for it."""
    try:
        with initialization.no_init_weights():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(copy.deepcopy(source.config), **_OPTIONS)
        _check_room(model)
        checkpoint = source.checkpoint(model)
        exprs = bind(model, checkpoint).exprs
    except VerificationError:
        raise
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
    return SourceModel(model, reader, exprs)


def _check_room(model: PreTrainedModel) -> None:
    """Of a model whose memory is reserved and not touched yet."""
    vocabulary = model.config.get_text_config().vocab_size
    needed = 4 * sum(p.numel() for p in model.parameters()) + _LOGITS * vocabulary + _BESIDE
    if needed > (free := available_bytes()):
        raise VerificationError(
            f"the source in float32 needs {size(needed)} of memory, {size(free)} are available; "
            "`llmc verify` measures the engine on a larger machine"
        )


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
