"""Public clients beside OpenAI's own: Hugging Face's, and with --soak litellm and LangChain."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from tests.serve.live import listening
from tests.serve.scripted import TEXT, ScriptedEngine

HI: Any = [{"role": "user", "content": "Hi"}]
USAGE: Any = {"include_usage": True}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with listening(ScriptedEngine()) as port:
        yield port


def test_huggingface_hub(port: int) -> None:
    client = huggingface_hub.InferenceClient(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", timeout=30)
    whole = client.chat_completion(HI, model="toy", max_tokens=100, seed=1, logprobs=True, top_logprobs=2)
    assert whole.choices[0].message.content == TEXT and whole.usage.completion_tokens > 0
    stream = client.chat_completion(HI, model="toy", stream=True, stream_options=USAGE)
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens > 0


@pytest.mark.soak
def test_litellm_and_langchain(port: int, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "litellm", "langchain-openai"], check=True)
    script = Path(__file__).parent / "other_clients.py"
    words = [str(python), str(script), f"http://127.0.0.1:{port}/v1", TEXT]
    quiet = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # or it asks for a list of prices first
    result = subprocess.run(words, capture_output=True, text=True, env=quiet)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("as they must be") == 2
    print(result.stdout, file=sys.stderr)
