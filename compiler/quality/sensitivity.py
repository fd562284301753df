"""What rounding one unit's weights costs: KL of the model's answers over the calibration text, that unit rounded and
nothing else, by transformers' own module in float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf, isfinite

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from llmc.compiler.quality.resume import Resumable
from llmc.compiler.quality.units import Part, Tensors, Unit
from llmc.compiler.verify.errors import VerificationError
from llmc.ir.arrays import round_to
from llmc.ir.formats import Numbers
from llmc.ir.quantise import quantise

F32 = npt.NDArray[np.float32]
_ROWS = 4096  # of a weight at a time
_POSITIONS = 64  # whose distributions are compared at a time


class Calibration:
    """A module over some sequences of one length, and what rounding parts of it does."""

    def __init__(
        self, module: nn.Module, sequences: Sequence[Sequence[int]], names: Mapping[Tensors, str] | None = None
    ) -> None:
        """`names`: of parameters, by the checkpoint's tensors that they are made of; where they are its own, none.
        Raises VerificationError where the module's answers are no numbers."""
        self._module = module
        self._ids = torch.tensor([list(ids) for ids in sequences])
        own: dict[Tensors, str] = {(name,): name for name, _ in module.named_parameters()}
        self._names = own if names is None else names
        self._resumable = Resumable(module, self._forward)
        self._answers = torch.log_softmax(self._resumable.answer, -1)
        if not self._answers.isfinite().all():
            raise VerificationError("logits over the calibration text are infinite or NaN")

    @property
    def num_tokens(self) -> int:
        return self._ids.numel()

    def _forward(self) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self._module(input_ids=self._ids, use_cache=False).logits
        return logits.flatten(0, 1)

    def holds(self, unit: Unit) -> bool:
        """Whether the unit's weights are parameters of the module, whole, as they are or transposed."""
        return all(self._weight(part) is not None for part in unit.parts)

    def _weight(self, part: Part) -> Tensor | None:
        """A view of the weight as [N, K]."""
        name = self._names.get(part.tensors)
        if name is None:
            return None
        weight = self._module.get_parameter(name).detach()
        by_name = self._module.get_submodule(name.rpartition(".")[0])
        if weight.shape == part.shape and not isinstance(by_name, Conv1D):
            return weight
        return weight.T if weight.T.shape == part.shape else None

    def _weights(self, unit: Unit) -> list[Tensor]:
        found = [self._weight(part) for part in unit.parts]
        return [weight for weight in found if weight is not None]

    def kl(self, unit: Unit, numbers: Numbers) -> float:
        """In nats, the mean over all positions; infinite where the answers are no numbers."""
        with self._rounded(unit, numbers):
            logits = self._resumable.run(self._names[unit.parts[0].tensors], self._forward)
        total = 0.0
        for start in range(0, len(logits), _POSITIONS):
            right = self._answers[start : start + _POSITIONS].double()
            wrong = torch.log_softmax(logits[start : start + _POSITIONS].double(), -1)
            total += float((right.exp() * (right - wrong)).sum())
        return total / len(logits) if isfinite(total) else inf

    def squared_error(self, unit: Unit, numbers: Numbers) -> float:
        """||W' - W||^2 of the unit's weights."""
        total = 0.0
        for weight in self._weights(unit):
            for rows in weight.split(_ROWS):
                values = np.ascontiguousarray(rows.numpy())
                difference = rounded_to(values, numbers) - values
                total += float(np.vdot(difference, difference))
        return total

    @contextmanager
    def _rounded(self, unit: Unit, numbers: Numbers) -> Iterator[None]:
        weights = self._weights(unit)
        kept = [weight.clone() for weight in weights]
        try:
            for weight in weights:
                for rows in weight.split(_ROWS):
                    rows.copy_(torch.from_numpy(rounded_to(np.ascontiguousarray(rows.numpy()), numbers)))
            yield
        finally:
            for weight, values in zip(weights, kept, strict=True):
                weight.copy_(values)


def rounded_to(weight: F32, numbers: Numbers) -> F32:
    """What rows of a weight stand for once they are held in these numbers."""
    if numbers.group is None:
        return np.asarray(round_to(weight, numbers.element), np.float32)
    return quantise(weight, numbers).floats().astype(np.float32)
