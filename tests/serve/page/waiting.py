"""Waiting for what another thread, or the page, does."""

from __future__ import annotations

import time
from collections.abc import Callable

from playwright.sync_api import Page

HANG = 20.0  # seconds: what takes longer than this is stuck


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + HANG
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def until_page(page: Page, expression: str) -> None:
    """Playwright's own waiting is made of strings that are run, which the page's policy forbids."""
    until(lambda: page.evaluate(expression), expression)
