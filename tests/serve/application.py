"""Requests of the application, called directly."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

HI = {"role": "user", "content": "Hi"}

CHAT = {"model": "toy", "messages": [HI]}

STREAM = {**CHAT, "stream": True}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))
