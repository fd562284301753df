"""llmc.runtime: load an engine folder and serve it.

The names below are loaded on first use, so importing is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmc.runtime.errors import EngineError, EngineGone, QueueFull, RequestError, RuntimeFailure, StepFailed
    from llmc.runtime.loop.engine import Engine
    from llmc.runtime.loop.handle import RequestHandle
    from llmc.runtime.loop.request import FinishReason
    from llmc.runtime.loop.results import Completion, Output, Timing, TokenLogprobs
    from llmc.runtime.process.async_engine import AsyncEngine
    from llmc.runtime.process.engine_process import EngineProcess
    from llmc.runtime.step.params import SamplingParams
    from llmc.runtime.step.scheduling import LatencyClass, LatencyTarget, SchedulingOptions

_HOMES = {
    "AsyncEngine": "process.async_engine",
    "Completion": "loop.results",
    "Engine": "loop.engine",
    "EngineError": "errors",
    "EngineGone": "errors",
    "EngineProcess": "process.engine_process",
    "FinishReason": "loop.request",
    "LatencyClass": "step.scheduling",
    "LatencyTarget": "step.scheduling",
    "Output": "loop.results",
    "QueueFull": "errors",
    "RequestError": "errors",
    "RequestHandle": "loop.handle",
    "RuntimeFailure": "errors",
    "SamplingParams": "step.params",
    "SchedulingOptions": "step.scheduling",
    "StepFailed": "errors",
    "Timing": "loop.results",
    "TokenLogprobs": "loop.results",
}

__all__ = [
    "AsyncEngine",
    "Completion",
    "Engine",
    "EngineError",
    "EngineGone",
    "EngineProcess",
    "FinishReason",
    "LatencyClass",
    "LatencyTarget",
    "Output",
    "QueueFull",
    "RequestError",
    "RequestHandle",
    "RuntimeFailure",
    "SamplingParams",
    "SchedulingOptions",
    "StepFailed",
    "Timing",
    "TokenLogprobs",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
