"""Engines of tiny models, built through the whole driver, once for all workers of a test run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.utils import logging

from tests.e2e.commands import Commands
from tests.e2e.engines import Engines
from tests.e2e.shared_engines import engines

logging.disable_progress_bar()
__all__ = ["engines"]


@pytest.fixture(scope="session")
def llmc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """llmc.run("build", folder, ...): the command line, without the seconds of imports before each."""
    with Commands(tmp_path_factory.mktemp("commands")) as commands:
        yield commands


@pytest.fixture(scope="session")
def speaking(engines: Engines) -> Path:
    """A tiny Llama's HF folder, two shards, with a tokenizer of 256 byte tokens and a chat template."""
    model, _ = engines.model("llama", vocab_size=300)
    folder = engines.root / "speaking"
    with engines.once(folder) as missing:
        if missing:
            model.save_pretrained(folder, max_shard_size="150KB")
            _byte_tokenizer().save(str(folder / "tokenizer.json"))
            settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
            template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
            text = json.dumps({**settings, "chat_template": template})
            (folder / "tokenizer_config.json").write_text(text)
    return folder


@pytest.fixture
def damaged(speaking: Path, tmp_path: Path) -> Path:
    """A copy of `speaking` for a test to damage."""
    return Path(shutil.copytree(speaking, tmp_path / "model"))


def _byte_tokenizer() -> Tokenizer:
    vocab = {token: index for index, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer
