"""A forward pass that is begun where something changed: the layers before it give what they gave the first time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn


class Resumable:
    """A module's layers are the elements of its longest ModuleList, if each runs once, in order. Where a module has no
    such list, every run is a whole one. `answer` is that of the first."""

    def __init__(self, module: nn.Module, forward: Callable[[], Tensor]) -> None:
        lists = [(path, found) for path, found in module.named_modules() if isinstance(found, nn.ModuleList)]
        path, layers = max(lists, key=lambda one: len(one[1]), default=("", nn.ModuleList()))
        self._path: str = path
        self._layers: list[nn.Module] = list(layers)
        self._outputs: list[Any] = []
        self._order: list[int] = []
        handles = [layer.register_forward_hook(partial(self._keep, at)) for at, layer in enumerate(self._layers)]
        try:
            self.answer = forward()
        finally:
            for handle in handles:
                handle.remove()
        if self._order != list(range(len(self._layers))):
            self._layers = []

    def _keep(self, at: int, module: nn.Module, given: Any, output: Any) -> None:
        self._order.append(at)
        self._outputs.append(output)

    def run(self, changed: str, forward: Callable[[], Tensor]) -> Tensor:
        """The answer, if nothing changed in layers before the one that holds the module at the path `changed`."""
        with ExitStack() as stack:
            for layer, output in zip(self._layers[: self._first(changed)], self._outputs, strict=False):
                stack.enter_context(patch.object(layer, "forward", lambda *_, output=output, **__: output))
            return forward()

    def _first(self, changed: str) -> int:
        """How many layers come before it: none, for what is nowhere among them."""
        number, _, _ = changed.removeprefix(f"{self._path}.").partition(".")
        if changed.startswith(f"{self._path}.") and number.isdecimal():
            return int(number)
        return 0
