"""The tokenizer as transformers would run it, written down as files that need no transformers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.model_config import one_line

_ANY_TOKENIZER_FILE = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer for the `tokenizers` library, with what acts around it."""

    tokenizer_json: str
    """What transformers runs after it applied tokenizer_config.json and special_tokens_map.json."""
    chat_template: str | None
    """Jinja2; the default one where a model has several."""
    special_tokens: dict[str, str]
    """Names a chat template may use: bos_token, eos_token, pad_token, unk_token … -> their text."""
    num_tokens: int
    """One past the largest id it can produce; rows of the logits from here on are padding."""
    add_bos: bool
    """Whether encoding with special tokens puts BOS first."""
    bos: int | None
    eos: int | None
    pad: int | None

    @property
    def tokenizer_config_json(self) -> str:
        """A tokenizer_config.json with the special tokens' names, for the engine folder."""
        return json.dumps({**self.special_tokens, "add_bos_token": self.add_bos}, indent=2, sort_keys=True) + "\n"


def read_tokenizer(folder: Path) -> TokenizerFiles | None:
    """The tokenizer of an HF folder, or None where it has no file of one. Raises SourceError."""
    if not any((folder / name).is_file() for name in _ANY_TOKENIZER_FILE):
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # tokenizer files fail in as many ways as there are libraries behind them
        raise SourceError(f"{folder}: the tokenizer cannot be loaded: {one_line(error)}") from error
    return _files(tokenizer, folder)


def _files(tokenizer: Any, where: Path) -> TokenizerFiles:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise SourceError(
            f"{where}: {type(tokenizer).__name__} runs in Python and has no tokenizer.json form, "
            "so an engine cannot carry it"
        )
    tokenizer_json = backend.to_str()
    model_kind = json.loads(tokenizer_json)["model"].get("type")
    if tokenizer.clean_up_tokenization_spaces and model_kind != "BPE":  # for BPE transformers ignores it too
        raise SourceError(f"{where}: clean_up_tokenization_spaces of a {model_kind} tokenizer is not supported")
    encoded = tokenizer("x")["input_ids"]
    add_bos = bool(encoded) and tokenizer.bos_token_id is not None and encoded[0] == tokenizer.bos_token_id
    plain = tokenizer("x", add_special_tokens=False)["input_ids"]
    if encoded != [*([tokenizer.bos_token_id] if add_bos else []), *plain]:
        raise SourceError(
            f"{where}: puts special tokens around a text, 'x' is {encoded}: only a BOS before it is supported"
        )
    vocabulary = backend.get_vocab(with_added_tokens=True)
    return TokenizerFiles(
        tokenizer_json=tokenizer_json,
        chat_template=_default_template(tokenizer.chat_template, where),
        special_tokens={
            key: str(value) for key, value in tokenizer.special_tokens_map.items() if isinstance(value, str)
        },
        num_tokens=max(vocabulary.values(), default=-1) + 1,
        add_bos=add_bos,
        bos=tokenizer.bos_token_id,
        eos=tokenizer.eos_token_id,
        pad=tokenizer.pad_token_id,
    )


def _default_template(template: object, where: Path) -> str | None:
    match template:
        case None | str():
            return template
        case {"default": str(default)}:
            return default
        case _:
            raise SourceError(f"{where}: several chat templates and none of them is named default")
