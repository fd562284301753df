"""HF module -> torch.export graph, on the meta device, with batch and sequence dynamic."""

from __future__ import annotations

import copy
import inspect
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from unittest.mock import patch

import torch
import torch.fx.config
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from llmc.compiler.capture import hooks
from llmc.compiler.capture.bounded import bounded_parameters
from llmc.compiler.capture.errors import CaptureError, TransformersFailed
from llmc.compiler.capture.survey import NotSurveyed, survey
from llmc.compiler.capture.tracing import Trace, tracing

# Sizes of the traced example; equal to nothing else in a model, so that a specialised one is not mistaken for it.
_BATCH, _SEQ = 2, 11


def meta_model(config: PretrainedConfig, num_tensors: int | None = None) -> PreTrainedModel:
    """The causal LM of a config, float32, without storage. CaptureError where transformers refuses the config, or it
    asks for empty parameters, or more than the `num_tensors` of its checkpoint could fill (None: not known)."""
    hooks.install()
    config = copy.deepcopy(config)  # from_config writes the implementations' names into it
    rope_types(config)
    try:
        with torch.device("meta"), bounded_parameters(config, num_tensors), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes without elements, which are refused by name
            model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config,
                attn_implementation=hooks.IMPLEMENTATION,
                experts_implementation=hooks.IMPLEMENTATION,
                dtype=torch.float32,
                trust_remote_code=False,
            )
    except KeyError as error:
        if error.args != (hooks.IMPLEMENTATION,):
            raise _failed(error, f"{config.model_type}: the module cannot be built") from error
        raise CaptureError(
            f"{config.model_type}: has its own table of attention implementations, so it cannot be captured"
        ) from None
    except Exception as error:  # modeling code raises what it likes
        raise _failed(error, f"{config.model_type}: the module cannot be built") from error
    for name, parameter in model.named_parameters():
        if not parameter.numel():
            raise TransformersFailed(
                f"{config.model_type}: {name} {list(parameter.shape)} has no elements: a size in config.json is 0"
            )
    model.train(False)
    model.requires_grad_(False)
    return model


@dataclass(frozen=True)
class Exported:
    """A module and its graph. Placeholders are ids and positions i64[B, S], parameters and buffers."""

    model: PreTrainedModel
    program: ExportedProgram


class Step(nn.Module):
    """The module as the engine runs it: ids and positions i64[B, S] -> logits [B, S, V], no cache."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        out = self.model(input_ids=ids, position_ids=positions, use_cache=False)
        logits: Tensor = out.logits
        return logits


def export(model: PreTrainedModel) -> Exported:
    """Trace the module. CaptureError names the module that could not be, and why."""
    _takes_positions(model)
    example = torch.zeros((_BATCH, _SEQ), dtype=torch.int64, device="meta")
    step = Step(model)
    with suppress(NotSurveyed):
        _survey(model, step, example)
    dynamic = {name: {0: Dim.DYNAMIC, 1: Dim.DYNAMIC} for name in ("ids", "positions")}
    with tracing(model) as trace, torch.no_grad(), _quiet():
        try:
            program = torch.export.export(step, (example, example.clone()), dynamic_shapes=dynamic, strict=False)
        except Exception as error:
            raise _failed(error, f"{trace.module}: torch.export failed") from error
    _took_effect(model, program, trace)
    return Exported(model, program)


def run_once(config: PretrainedConfig, num_tensors: int | None = None) -> None:
    """Build the module of a config and run it without values. Raises TransformersFailed or NotSurveyed where its code
    fails; what llmc itself would refuse is no failure here."""
    try:
        model = meta_model(config, num_tensors)
        _survey(model, Step(model), torch.zeros((_BATCH, _SEQ), dtype=torch.int64, device="meta"))
    except TransformersFailed:
        raise
    except CaptureError:
        return


def _survey(model: PreTrainedModel, step: Step, example: Tensor) -> None:
    """Refuse in seconds what the trace, or the importer behind it, would refuse after minutes. Raises NotSurveyed."""
    with tracing(model) as trace, torch.no_grad(), _quiet():
        unknown = survey(step, (example, example.clone()), trace)
        _attends(model, trace)
        if unknown is not None:
            raise unknown


def rope_types(config: PretrainedConfig) -> None:
    """CaptureError for a rope type that transformers does not know, before it fails somewhere inside."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for rope_type in _stated_rope_types(getattr(config, "rope_parameters", None)):
        if rope_type != "default" and rope_type not in ROPE_INIT_FUNCTIONS:
            known = ", ".join(sorted(ROPE_INIT_FUNCTIONS))
            raise CaptureError(f"config: rope_type {rope_type!r} is unknown, expected one of default, {known}")
        if rope_type in ("dynamic", "longrope"):
            raise CaptureError(f"config: rope_type {rope_type!r} depends on the text's length, not supported yet")


def _stated_rope_types(parameters: object) -> Iterator[str]:
    if not isinstance(parameters, dict):
        return
    if (stated := parameters.get("rope_type", parameters.get("type"))) is not None:
        yield str(stated)
    for nested in parameters.values():
        yield from _stated_rope_types(nested)


@contextmanager
def _quiet() -> Iterator[None]:
    """torch without its warnings and error logs, which our one line replaces, and without a stack per node."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), patch.object(torch.fx.config, "do_not_emit_stack_traces", True, create=True):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _takes_positions(model: PreTrainedModel) -> None:
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise CaptureError(
            f"{type(model).__name__} takes no position_ids, so its tokens' positions cannot be given, not supported"
        )


def _took_effect(model: PreTrainedModel, program: ExportedProgram, trace: Trace) -> None:
    """The hooks were called, and the sizes stayed dynamic."""
    _attends(model, trace)
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in ("ids", "positions"):
            for axis, size in zip(("batch size", "sequence length"), node.meta["val"].shape, strict=True):
                if not isinstance(size, torch.SymInt) or not size.node.expr.is_symbol:
                    raise CaptureError(f"{type(model).__name__}: its code fixes the {axis} to {size}")


def _attends(model: PreTrainedModel, trace: Trace) -> None:
    if trace.num_attentions == 0:
        raise CaptureError(
            f"{type(model).__name__}: no attention went through transformers' attention interface "
            "(the model has its own), so it cannot be captured"
        )


def _failed(error: BaseException, what: str) -> CaptureError:
    """Our own refusal where the hooks raised it; else the failure, named and on one line."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, CaptureError):
            return cause
        cause = cause.__cause__ or cause.__context__
    text = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    if "specialized it to be a constant" in text:
        return CaptureError(f"{what}: its code fixes the batch size or the sequence length ({text[:200]})")
    return TransformersFailed(f"{what}: {type(error).__name__}: {text[:300]}")
