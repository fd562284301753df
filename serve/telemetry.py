"""A span for each request, for OpenTelemetry: extra `otel`. Nothing of it is imported unless it is asked for."""

import os
import time
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from llmc.serve.http.exchange import Exchange

_ATTRIBUTES = {
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "failed": "error.type",
}


class Spans:
    """Told of every exchange when it has ended. A client's `traceparent` is the span's parent."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": _service_name()}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("llmc.serve")

    @classmethod
    def over_http(cls) -> "Spans":
        """To where OTEL_EXPORTER_OTLP_ENDPOINT and its kind say, in a thread of its own: OTLP over HTTP."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return cls(OTLPSpanExporter())

    def record(self, exchange: Exchange, status: int) -> None:
        seconds = time.perf_counter() - exchange.began
        end = time.time_ns()
        span = self._tracer.start_span(
            f"{exchange.method} {exchange.route}",
            context=_parent(exchange),
            kind=trace.SpanKind.SERVER,
            start_time=end - int(seconds * 1e9),
            attributes=_attributes(exchange, status),
        )
        if status >= 500:
            span.set_status(trace.StatusCode.ERROR)
        span.end(end)

    def close(self) -> None:
        """What is not sent yet is."""
        self._provider.shutdown()


def _service_name() -> str:
    return os.environ.get("OTEL_SERVICE_NAME", "llmc")


def _parent(exchange: Exchange) -> Context:
    given = exchange.header(b"traceparent")
    return extract({"traceparent": given} if given is not None else {}, Context())


def _attributes(exchange: Exchange, status: int) -> dict[str, Any]:
    stated = {_ATTRIBUTES[name]: value for name, value in exchange.facts.items() if name in _ATTRIBUTES}
    http = {
        "http.request.method": exchange.method,
        "http.route": exchange.route,
        "http.response.status_code": status,
        "llmc.request.id": exchange.id,
    }
    return {**http, **{name: str(value) if name == "error.type" else value for name, value in stated.items()}}
