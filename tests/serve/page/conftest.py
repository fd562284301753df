"""A real Chromium, headless. Where there is none, these tests are skipped and say so."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.serve.live import listening
from tests.serve.page.waiting import HANG, until_page
from tests.serve.scripted import ScriptedEngine

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
OpenPage = Callable[..., Page]
expect.set_options(timeout=1000 * HANG)


@pytest.fixture(scope="module")  # while it runs, its thread has a loop, and asyncio.run is refused
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def open_url(browser: Browser) -> Iterator[OpenPage]:
    """open_url(url, **context settings) -> the page, ready. Whatever it complains of fails the test."""
    complaints: list[str] = []
    with ExitStack() as stack:

        def open(url: str, ready: bool = True, **settings: Any) -> Page:
            context = stack.enter_context(browser.new_context(**settings))
            context.set_default_timeout(1000 * HANG)
            page = context.new_page()
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
            page.goto(url)
            if ready:
                until_page(page, "document.getElementById('state').textContent === 'ready'")
            return page

        yield open
    # An answer that is a refusal is an error to the browser, not to the page.
    assert [what for what in complaints if not what.startswith("Failed to load resource")] == []


@pytest.fixture
def open_page(open_url: OpenPage) -> Iterator[OpenPage]:
    """open_page(*engines, key=None, **context settings) -> the page of a server over these engines."""
    with ExitStack() as stack:

        def open(*engines: ScriptedEngine, key: str | None = None, **settings: Any) -> Page:
            port = stack.enter_context(listening(*engines, key=key))
            return open_url(f"http://127.0.0.1:{port}/", **settings)

        yield open
