"""Lines of batch files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def chat(custom_id: str, text: str = "Hi", **fields: Any) -> dict[str, Any]:
    return _line(custom_id, CHAT, {"messages": [{"role": "user", "content": text}], **fields})


def completion(custom_id: str, prompt: Any = "the", **fields: Any) -> dict[str, Any]:
    return _line(custom_id, COMPLETION, {"prompt": prompt, **fields})


def _line(custom_id: str, url: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def write(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def mixed(count: int, max_tokens: int = 24) -> list[dict[str, Any] | str]:
    """Of all kinds: chats and completions, greedy and drawn, with and without a seed, several answers, errors."""
    lines: list[dict[str, Any] | str] = []
    for at in range(count):
        fields: dict[str, Any] = {"max_tokens": 4 + at % max_tokens, "ignore_eos": True}
        if at % 3 == 0:
            fields["temperature"] = 0
        if at % 5 == 1:
            fields["seed"] = at
        if at % 7 == 2:
            fields["n"] = 3
        make = chat if at % 2 else completion
        lines.append(make(f"line-{at}", f"the number {at} and more " * (1 + at % 4), **fields))
    lines[count // 2 : count // 2] = ["no JSON", completion("line-0"), completion("too-hot", temperature=1e9)]
    return lines
