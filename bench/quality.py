"""KL from a model by number format and by rounding, over the held-out text, in torch: what a format costs before there
is an engine of it. Weights alone are rounded; inputs stay float32.

    python bench/quality.py MODEL [--tokens 512] [FORMAT ...]

MODEL is best a dithered copy (bench/dithered.py): one whose weights lie on a grid of 4 bits tells which is its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script: this checkout's bench and tests

from llmc.compiler.capture.capture import Captured, capture
from llmc.compiler.quality.gptq import gptq
from llmc.compiler.quality.rounded import TOKENS, hessians
from llmc.compiler.quality.sensitivity import rounded_to
from llmc.compiler.quality.units import Unit, units_of
from llmc.compiler.sources.resolve import open_source
from llmc.compiler.sources.special_tokens import decide_tokens
from llmc.compiler.verify.corpus import calibration, held_out, spread
from llmc.compiler.verify.reference import SourceModel, source_model
from llmc.compiler.verify.source_text import source_text
from llmc.ir.formats import Numbers, Scheme
from llmc.passes.pipeline import default_pipeline, run_until_formats

F32 = npt.NDArray[np.float32]
FORMATS = ("int8", "int4", "int4g32", "int4g64z", "int4g32m")


class Model:
    """A model in torch, its weights as they are given, and its answers over a text."""

    def __init__(self, path: str, tokens: int) -> None:
        source = open_source(path)
        text, special = source_text(source), decide_tokens(source).tokens
        assert text is not None, f"{path} has no tokenizer"
        prefix = [special.bos] if special.add_bos and special.bos is not None else []
        ids = [text.encode(t)[len(prefix) :] for t in (held_out(), calibration())]
        self.held_out, self.calibration = (
            torch.tensor(spread(of, prefix, count, 128)) for of, count in zip(ids, (tokens, TOKENS), strict=True)
        )
        self.model: SourceModel = source_model(source)
        self.captured: Captured = capture(source)
        graph = run_until_formats(self.captured.graph, default_pipeline(Scheme.INT4, 1))
        *self.units, head = units_of(graph)
        self.head: Unit = head
        self.weights = {name: self._parameter(name) for name in self._names([*self.units, head])}
        self.kept = {name: weight.clone() for name, weight in self.weights.items()}

    def _names(self, units: Sequence[Unit]) -> list[str]:
        return [self.model.names[part.tensors] for unit in units for part in unit.parts]

    def _parameter(self, name: str) -> Tensor:
        return self.model.module.get_parameter(name).detach()

    def answers(self) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self.model.module(input_ids=self.held_out, use_cache=False).logits
        return torch.log_softmax(logits.flatten(0, 1), -1)

    def round(self, units: Sequence[Unit], rounding: Callable[[str, F32], F32]) -> None:
        for name in self._names(units):
            self.weights[name].copy_(torch.from_numpy(rounding(name, self.kept[name].numpy())))

    def restore(self) -> None:
        for name, weight in self.weights.items():
            weight.copy_(self.kept[name])

    def sums(self) -> Mapping[str, npt.NDArray[np.float64]]:
        """Of products of inputs, by the parameter that they meet."""
        first = [self._names([unit])[0] for unit in self.units]
        found = dict(zip(first, hessians(self.model.module, first, self.calibration), strict=True))
        return {name: found[f] for unit, f in zip(self.units, first, strict=True) for name in self._names([unit])}


def compared(right: Tensor, wrong: Tensor) -> str:
    kl = np.mean([float((a.exp() * (a - b)).sum()) for a, b in zip(right.double(), wrong.double(), strict=True)])
    same = float((right.argmax(-1) == wrong.argmax(-1)).double().mean())
    return f"KL {kl:.4f}  top-1 {same:.1%}"


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("formats", nargs=-1)
@click.option("--tokens", default=512, show_default=True)
def main(model: Path, formats: Sequence[str], tokens: int) -> None:
    """The head is int8 throughout."""
    subject = Model(str(model), tokens)
    right, sums = subject.answers(), subject.sums()
    int8 = Scheme.INT8.weight
    print(f"{model.name}: {len(right)} positions, head int8")
    for name in formats or FORMATS:
        numbers = Scheme.named(name).weight
        for how, rounding in (("nearest", _nearest(numbers)), ("gptq", _gptq(numbers, sums))):
            subject.round([subject.head], _nearest(int8))
            subject.round(subject.units, rounding)
            print(f"{name:9} {numbers.bits(4096):.2f} bits  {how:8} {compared(right, subject.answers())}", flush=True)
            subject.restore()


def _nearest(numbers: Numbers) -> Callable[[str, F32], F32]:
    return lambda name, weight: rounded_to(weight, numbers)


def _gptq(numbers: Numbers, sums: Mapping[str, npt.NDArray[np.float64]]) -> Callable[[str, F32], F32]:
    return lambda name, weight: gptq(weight, sums[name], numbers).floats().astype(np.float32)


if __name__ == "__main__":
    main()
