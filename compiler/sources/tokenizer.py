"""The model's own tokenizer, written down as files that need no transformers.

tokenizer.json is the tokenizer where a model has one, with the tokens that tokenizer_config.json adds to it; else the
SentencePiece model, converted; else what transformers makes of its files. The class that tokenizer_config.json names
may build another one from the vocabulary (transformers#45920): then tokenizer.json wins, and the disagreement is said.
"""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers
from transformers import AutoTokenizer
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.json_file import read_json_object
from llmc.compiler.sources.model_config import one_line
from llmc.compiler.sources.probe_texts import PROBES
from llmc.compiler.sources.sentencepiece_folder import sentencepiece_file, write_as_tokenizer_json
from llmc.compiler.sources.sentencepiece_model import is_sentencepiece

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
    tool_use_template: str | None = None
    """What takes the template's place in conversations with tools, where a model has several templates."""
    notices: tuple[str, ...] = ()
    """A line for each disagreement of the model's files about it."""

    @cached_property
    def inner(self) -> tokenizers.Tokenizer:
        """It at work."""
        return tokenizers.Tokenizer.from_str(self.tokenizer_json)

    @property
    def tokenizer_config_json(self) -> str:
        """A tokenizer_config.json with the special tokens' names, for the engine folder."""
        config: dict[str, Any] = {**self.special_tokens, "add_bos_token": self.add_bos}
        if self.tool_use_template is not None:
            config["chat_template"] = [{"name": "tool_use", "template": self.tool_use_template}]
        return json.dumps(config, indent=2, sort_keys=True) + "\n"


def read_tokenizer(folder: Path) -> TokenizerFiles | None:
    """The tokenizer of an HF folder, or None where it has no file of one. Raises SourceError."""
    if not any((folder / name).is_file() for name in _ANY_TOKENIZER_FILE):
        return None
    own, notices = _own(folder)
    files = _files(own, folder, notices)
    if not (folder / "tokenizer.json").is_file():
        return files
    return replace(files, notices=(*files.notices, *_other_bos(folder, files)))


def transformers_tokenizer(folder: Path) -> Any:
    """The tokenizer of an HF folder as an object of transformers. Raises SourceError."""
    return _own(folder)[0]


def _own(folder: Path) -> tuple[Any, list[str]]:
    """And where the folder's files disagree about it."""
    if (path := sentencepiece_file(folder)) is not None and is_sentencepiece(path):
        with TemporaryDirectory() as place:
            notices = write_as_tokenizer_json(path, Path(place))
            return _of_tokenizer_json(Path(place)), notices
    declared, problem = _declared(folder)
    if not (folder / "tokenizer.json").is_file():
        if declared is None:
            raise SourceError(f"{folder}: the tokenizer cannot be loaded: {problem}")
        return declared, []
    own = declared if type(declared) is TokenizersBackend else _of_tokenizer_json(folder)
    if declared is None:
        return own, [f"tokenizer.json is used; transformers cannot load what tokenizer_config.json names: {problem}"]
    return own, _disagreement(own, declared)


def _declared(folder: Path) -> tuple[Any, str]:
    """What AutoTokenizer makes of a folder, or None and why it cannot."""
    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True), ""
    except Exception as error:  # tokenizer files fail in as many ways as there are libraries behind them
        return None, one_line(error).replace(str(folder), folder.name)  # a build's bytes do not depend on the place


def _of_tokenizer_json(folder: Path) -> Any:
    try:
        return TokenizersBackend.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        raise SourceError(f"{folder}: the tokenizer cannot be loaded: {one_line(error)}") from error


def _other_bos(folder: Path, files: TokenizerFiles) -> list[str]:
    """add_bos_token, where it asks for what tokenizer.json does not do; transformers 5 follows tokenizer.json too."""
    path = folder / "tokenizer_config.json"
    asked = read_json_object(path).get("add_bos_token") if path.is_file() else None
    if asked in (None, files.add_bos):
        return []
    does = "puts BOS before each text" if files.add_bos else "puts no BOS before a text"
    return [f"tokenizer.json {does} and is followed; tokenizer_config.json says add_bos_token: {json.dumps(asked)}"]


def _disagreement(own: Any, declared: Any) -> list[str]:
    """A text that the class of tokenizer_config.json encodes or begins otherwise than tokenizer.json."""
    if declared is own:
        return []
    name = type(declared).__name__
    for text in PROBES:
        ours, theirs = (one(text, add_special_tokens=False).tokens() for one in (own, declared))
        if ours != theirs:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
            return [
                f"tokenizer.json wins over {name}, which would split {text!r} otherwise: from token {at} on "
                f"{theirs[at : at + 4]} instead of {ours[at : at + 4]}"
            ]
    ours, theirs = own("x")["input_ids"], declared("x")["input_ids"]
    if ours != theirs:
        return [f"tokenizer.json wins over {name}, with which the ids of 'x' would be {theirs} instead of {ours}"]
    return []


def _files(tokenizer: Any, where: Path, notices: list[str]) -> TokenizerFiles:
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
    first = _put_before(tokenizer, where)
    bos = tokenizer.bos_token_id if first is None else first
    if first is not None and tokenizer.bos_token_id not in (None, first):
        notices.append(f"BOS is {first}, which the tokenizer puts before a text; bos_token is {tokenizer.bos_token_id}")
    vocabulary = backend.get_vocab(with_added_tokens=True)
    return TokenizerFiles(
        tokenizer_json=tokenizer_json,
        chat_template=_default_template(tokenizer.chat_template, where),
        tool_use_template=several.get("tool_use") if isinstance(several := tokenizer.chat_template, dict) else None,
        special_tokens={
            key: str(value) for key, value in tokenizer.special_tokens_map.items() if isinstance(value, str)
        },
        num_tokens=max(vocabulary.values(), default=-1) + 1,
        add_bos=first is not None,
        bos=bos,
        eos=tokenizer.eos_token_id,
        pad=tokenizer.pad_token_id,
        notices=tuple(notices),
    )


def _put_before(tokenizer: Any, where: Path) -> int | None:
    """The id that the tokenizer puts before a text. Raises SourceError for several, and for one after it."""
    encoded = tokenizer("x")["input_ids"]
    plain = tokenizer("x", add_special_tokens=False)["input_ids"]
    before = encoded[: len(encoded) - len(plain)]
    if [*before, *plain] != encoded or len(before) > 1:
        raise SourceError(
            f"{where}: puts special tokens around a text, 'x' is {encoded}: only one before it is supported"
        )
    return int(before[0]) if before else None


def _default_template(template: object, where: Path) -> str | None:
    match template:
        case None | str():
            return template
        case {"default": str(default)}:
            return default
        case _:
            raise SourceError(f"{where}: several chat templates and none of them is named default")
