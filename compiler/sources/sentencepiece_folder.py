"""A folder whose tokenizer is a tokenizer.model, written again as one with the tokenizer.json that it amounts to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from llmc.compiler.sources.json_file import read_json_object
from llmc.compiler.sources.sentencepiece_model import SentencePieceModel, read_sentencepiece, sentencepiece_tokenizer

_MODELS = ("tokenizer.model", "spiece.model")
# What transformers reads beside a tokenizer.json.
_BESIDE = ("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json", "config.json")


def sentencepiece_file(folder: Path) -> Path | None:
    """The SentencePiece model of a folder that has nothing newer."""
    if (folder / "tokenizer.json").is_file():
        return None
    return next((folder / name for name in _MODELS if (folder / name).is_file()), None)


def write_as_tokenizer_json(path: Path, into: Path) -> list[str]:
    """Of a SentencePiece model and the files beside it; returns what has to be said. Raises SourceError."""
    model = read_sentencepiece(path)
    config_path = path.parent / "tokenizer_config.json"
    config = read_json_object(config_path) if config_path.is_file() else {}
    spec = model.trainer_spec
    for name, index in (("bos_token", spec.bos_id), ("eos_token", spec.eos_id), ("unk_token", spec.unk_id)):
        config[name] = config.get(name) or model.token(index)
    tokenizer = sentencepiece_tokenizer(model, _names(model, config), path)
    _put_around(tokenizer, config)
    for name in _BESIDE:
        if (path.parent / name).is_file():
            shutil.copy(path.parent / name, into / name)
    if (templates := path.parent / "additional_chat_templates").is_dir():
        shutil.copytree(templates, into / templates.name)
    tokenizer.save(str(into / "tokenizer.json"))
    (into / "tokenizer_config.json").write_text(json.dumps(config))
    if "add_bos_token" in config:
        return []
    return [f"{path.name} is the tokenizer and nothing says add_bos_token: no BOS is put before a text"]


def _names(model: SentencePieceModel, config: dict[str, Any]) -> dict[int, str]:
    """Names that tokenizer_config.json gives to placeholders of the model, unless another piece has the name."""
    stated = config.get("added_tokens_decoder")
    taken = {piece.piece for piece in model.pieces}
    names: dict[int, str] = {}
    for index, token in stated.items() if isinstance(stated, dict) else ():
        content = token.get("content") if isinstance(token, dict) else token
        if index.isdecimal() and model.token(int(index)) is not None and content not in taken:
            names[int(index)] = str(content)
    return names


def _put_around(tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """What tokenizer_config.json says of the ends of a text; beside a tokenizer.json transformers does not read it."""
    around = [_content(config[f"{end}_token"]) if config.get(f"add_{end}_token") else None for end in ("bos", "eos")]
    known = [token for token in around if token is not None and tokenizer.token_to_id(token) is not None]
    if known:
        single = " ".join(token for token in (around[0], "$A", around[1]) if token == "$A" or token in known)
        ids = [(token, tokenizer.token_to_id(token)) for token in known]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)


def _content(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token
