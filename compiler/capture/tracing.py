"""What a trace in progress knows: which module is running, and what the hooks have seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from torch import nn


@dataclass
class Trace:
    """One trace of one module. The hooks find it through `current_trace`."""

    path: list[str] = field(default_factory=list)
    """Paths of the modules that are running, outermost first."""
    num_attentions: int = 0
    num_masks: int = 0

    @property
    def module(self) -> str:
        return self.path[-1] if self.path else "the model"


_current: ContextVar[Trace | None] = ContextVar("llmc_trace", default=None)


def current_trace() -> Trace | None:
    """The trace that runs in this context; None when HF's code runs for itself."""
    return _current.get()


@contextmanager
def tracing(model: nn.Module) -> Iterator[Trace]:
    """Make a trace current and keep its path up to date while `model` runs."""
    trace = Trace()
    with ExitStack() as stack:
        for name, module in model.named_modules():

            def enter(_module: nn.Module, _args: object, name: str = name) -> None:
                trace.path.append(name)

            def leave(_module: nn.Module, _args: object, _out: object) -> None:
                trace.path.pop()

            stack.enter_context(module.register_forward_pre_hook(enter))
            stack.enter_context(module.register_forward_hook(leave))
        token = _current.set(trace)
        try:
            yield trace
        finally:
            _current.reset(token)
