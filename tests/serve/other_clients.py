"""Asks a server through litellm and langchain-openai, as their users do. For a Python that has both:

python tests/serve/other_clients.py http://127.0.0.1:8000/v1 "the answer that it must give"
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

HI = [{"role": "user", "content": "Hi"}]


def ask_litellm(url: str) -> list[str]:
    """By its client for vLLM, which is no wrapper of openai's."""
    litellm: Any = import_module("litellm")
    asked: Any = {"model": "hosted_vllm/toy", "messages": HI, "api_base": url, "api_key": "x", "num_retries": 0}
    whole = litellm.completion(**asked)
    pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True)]
    return [whole.choices[0].message.content, "".join(pieces)]


def ask_langchain(url: str) -> list[str]:
    langchain: Any = import_module("langchain_openai")
    chat = langchain.ChatOpenAI(base_url=url, api_key="x", model="toy", max_retries=0, stream_usage=True)
    whole = chat.invoke([("human", "Hi")])
    assert whole.usage_metadata["output_tokens"] > 0
    pieces = list(chat.stream([("human", "Hi")]))
    responses = langchain.ChatOpenAI(base_url=url, api_key="x", model="toy", max_retries=0, use_responses_api=True)
    return [whole.text, "".join(piece.text for piece in pieces), responses.invoke([("human", "Hi")]).text]


def main() -> None:
    url, wanted = sys.argv[1:]
    for ask in (ask_litellm, ask_langchain):
        got = ask(url)
        assert got == [wanted] * len(got), (ask.__name__, got)
        print(f"{ask.__name__}: {len(got)} answers as they must be")


if __name__ == "__main__":
    main()
