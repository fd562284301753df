"""Spans of requests, in memory."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from llmc.serve.telemetry import Spans
from tests.serve.asgi import JSON, Client

CHAT = {"messages": [{"role": "user", "content": "a secret"}]}
TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_every_request_is_a_span_without_its_texts() -> None:
    async def work() -> None:
        client = Client.of()
        client.server.spans = spans
        parent = (b"traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode())
        await client.post("/v1/chat/completions", CHAT, [*JSON, parent])
        client.engine.fault_after = 1
        await client.post("/v1/chat/completions", {**CHAT, "stream": True})
        await client.post("/nowhere\n", CHAT)

    exporter = InMemorySpanExporter()
    spans = Spans(exporter)
    asyncio.run(work())
    spans.close()
    good, bad, lost = exporter.get_finished_spans()
    assert good.name == "POST /v1/chat/completions" and good.attributes is not None and good.context is not None
    assert f"{good.context.trace_id:032x}" == TRACE
    assert good.attributes["gen_ai.request.model"] == "toy" and good.attributes["http.response.status_code"] == 200
    assert int(str(good.attributes["gen_ai.usage.output_tokens"])) > 0
    assert bad.attributes is not None and bad.attributes["error.type"] == "500"
    assert lost.name == "POST " and "secret" not in good.to_json() + bad.to_json() + lost.to_json()


def test_nothing_of_it_is_imported_unasked() -> None:
    code = "import sys, llmc.serve.service, llmc.serve.run; assert not [m for m in sys.modules if 'opentelemetry' in m]"
    subprocess.run([sys.executable, "-c", code], check=True)
