"""Building a module no further than a checkpoint could fill it: a config's counts may be anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import PretrainedConfig

from llmc.compiler.capture.errors import CaptureError

MOST_PARAMETERS = 100_000  # of a module whose checkpoint is not known
PER_TENSOR = 16  # parameters that one tensor may fill: conversions split fused projections in three or four
SPARE = 256  # parameters that are tied to others, or registered twice


def most_parameters(num_tensors: int | None) -> int:
    """That a module filled from so many tensors may have; None: they are not known."""
    return MOST_PARAMETERS if num_tensors is None else PER_TENSOR * num_tensors + SPARE


@contextmanager
def bounded_parameters(config: PretrainedConfig, num_tensors: int | None) -> Iterator[None]:
    """CaptureError as soon as modules built meanwhile have more parameters than so many tensors could fill. Names and
    shapes are compared later, one by one (parameters.py)."""
    most, seen = most_parameters(num_tensors), 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal seen
        seen += 1
        if seen > most:
            layers = getattr(config.get_text_config(), "num_hidden_layers", None)
            held = "" if num_tensors is None else f", the checkpoint has {num_tensors} tensors"
            raise CaptureError(
                f"config: describes a {config.model_type} of more than {most} parameters "
                f"(num_hidden_layers is {layers}){held}"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()
