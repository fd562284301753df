"""docs/serving.md names every route, field and metric that there is."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from llmc.serve.protocol.json_body import MAX_BODY_BYTES, MAX_DEPTH
from llmc.serve.protocol.responses import REFUSED as OF_RESPONSES
from llmc.serve.protocol.rules import REFUSED, UNREAD
from llmc.serve.routes.table import ROUTES
from tests.serve.asgi import Client

TEXT = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()


def test_routes_and_fields() -> None:
    assert [route for route in ROUTES if f"`{route.method} {route.path}`" not in TEXT] == []
    assert [name for name in (*REFUSED, *UNREAD, *OF_RESPONSES) if f"`{name}`" not in TEXT] == []
    assert f"bodies of {MAX_BODY_BYTES // 2**20} MiB" in TEXT and f"JSON {MAX_DEPTH} deep" in TEXT


def test_metrics() -> None:
    page = asyncio.run(Client.of().get("/metrics")).body.decode()
    names = [name for name in re.findall(r"^# TYPE (\S+)", page, re.M) if not name.endswith("_created")]
    assert len(names) > 20 and [name for name in names if f"`{name}`" not in TEXT] == []
    told = re.findall(r"`((?:vllm|llmc):\w+)`", TEXT)
    assert [name for name in told if name not in names] == []
