"""What the page is made of, and the state that it draws: who gets it, and what is in it."""

from __future__ import annotations

import asyncio

from tests.serve.asgi import Client
from tests.serve.page.loaded import LoadedEngine
from tests.serve.scripted import ScriptedEngine


def test_the_state_needs_a_key_and_holds_no_text() -> None:
    async def ask() -> None:
        client = Client.of(LoadedEngine(), keys=["sesame"])
        assert (await client.get("/llmc/live")).status == 401
        key = ((b"authorization", b"Bearer sesame"), (b"content-type", b"application/json"))
        asked = {"messages": [{"role": "user", "content": "the secret word"}]}
        assert (await client.post("/v1/chat/completions", asked, key)).status == 200
        live = await client.get("/llmc/live", key)
        assert live.status == 200 and live.json()["state"] == "ready" and b"secret" not in live.body
        (model,) = live.json()["models"].values()
        assert model["pools"][0]["map"] == "3322222011" + "0" * 30 and len(model["requests"]) == 3
        client.server.stop_taking()
        assert (await client.get("/llmc/live", key)).json()["state"] == "shutting_down"

    asyncio.run(ask())


def test_files_are_open_and_bound_by_a_policy() -> None:
    async def ask() -> None:
        client = Client.of(ScriptedEngine(), keys=["sesame"])
        for path, kind in (("/", "text/html"), ("/page/main.js", "text/javascript"), ("/page/page.css", "text/css")):
            response = await client.get(path)
            assert response.status == 200 and response.headers["content-type"].startswith(kind)
            policy = response.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self';") and "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy and response.headers["x-content-type-options"] == "nosniff"
        index = (await client.get("/")).body
        assert b"http" not in index.replace(b"http-equiv", b"") and b"<script>" not in index and b"style=" not in index
        for path in ("/page/", "/page/none.js", "/page/../routes.py", "/page/__init__.py", "/page/%2e%2e/live.py"):
            assert (await client.get(path)).status == 404

    asyncio.run(ask())
