"""Which ops a module's code runs, found in a second or two: it runs once on meta tensors of fixed sizes, where a trace
with symbolic sizes takes minutes for a deep model. What the importer does not know is refused here, all at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_pre_dispatch, enable_python_dispatcher
from torch._export.utils import _compiling_state_context
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils._pytree import tree_leaves

from llmc.compiler.capture import aten_layers, aten_pointwise, aten_shape  # noqa: F401  (registers handlers)
from llmc.compiler.capture.errors import CaptureError
from llmc.compiler.capture.importer import HOW_TO_ADD, is_known
from llmc.compiler.capture.tracing import Trace


class NotSurveyed(Exception):
    """The code does not run on meta tensors."""


@dataclass(frozen=True)
class _Run:
    """An op that was run. Its tensors are kept: a storage that is let go could lend its number to another."""

    name: str
    where: str
    read: tuple[Tensor, ...]
    made: tuple[Tensor, ...]


class _Recorder(SchemaCheckMode):  # type: ignore[no-untyped-call]
    """Sees ops as torch.export does, before those that are made of others (linear, matmul) are taken apart: of torch's
    modes for that stage this is the one that lets a program run."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._dispatch_key = torch._C.DispatchKey.PreDispatch
        self._trace = trace
        self.runs: list[_Run] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        found = _Run(str(func._overloadpacket), self._trace.module, _tensors((args, kwargs)), _tensors(made))
        self.runs.append(found)
        return made


def survey(step: nn.Module, example: tuple[Tensor, ...], trace: Trace) -> CaptureError | None:
    """A refusal with every op that results depend on and the importer does not know, and the modules where it stands.

    `trace` is current, and told which modules run. Raises CaptureError where a hook does; NotSurveyed for code that
    does not run on meta tensors, which is left to torch.export.
    """
    try:
        with (
            _compiling_state_context(),
            enable_python_dispatcher(),
            enable_pre_dispatch(),
            _Recorder(trace) as recorder,
        ):
            results = step(*example)
    except CaptureError:
        raise
    except Exception as error:  # modeling code raises what it likes
        raise NotSurveyed from error
    unknown: dict[str, list[str]] = {}
    for run in _needed(recorder.runs, _tensors(results)):
        if not is_known(run.name):
            unknown.setdefault(run.name, []).append(run.where)
    if not unknown:
        return None
    ops = "; ".join(f"{_places(where)}: op {name} is not known" for name, where in unknown.items())
    return CaptureError(f"{ops}; {HOW_TO_ADD}")


def _needed(runs: list[_Run], results: Iterable[Tensor]) -> list[_Run]:
    """Those that results depend on, through values or through writes to their storage (aliasing.py), in their order."""
    needed = {_storage(tensor) for tensor in results}
    found = []
    for run in reversed(runs):
        if not needed.isdisjoint(map(_storage, run.made)):
            needed.update(map(_storage, run.read))
            found.append(run)
    return found[::-1]


def _tensors(values: Any) -> tuple[Tensor, ...]:
    return tuple(leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _places(where: list[str]) -> str:
    """The first of the modules, and how many more there are."""
    modules = list(dict.fromkeys(where))
    return modules[0] + (f" and {len(modules) - 1} more" if len(modules) > 1 else "")
