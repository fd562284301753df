"""A GGUF's vocabulary as a tokenizer for the `tokenizers` library: exactly its tokens, under their ids.

tests/sources/test_gguf_ids.py holds what comes out against llama.cpp's own ids.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.gguf.advice import INSTEAD
from llmc.compiler.sources.gguf.roles import TokenType
from llmc.compiler.sources.gguf.splits import Pre
from llmc.compiler.sources.gguf.spm_merges import spm_merges
from llmc.compiler.sources.gguf.vocabulary import Vocabulary
from llmc.compiler.sources.tokenizer import TokenizerFiles

_SPACE = "\u2581"
_SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN)
_PHI_3_KEEPS_AFTER = ("<unk>", "<s>", "<|endoftext|>")
_NAMED = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


def tokenizer_files(vocabulary: Vocabulary, metadata: Mapping[str, Any], where: Path) -> TokenizerFiles:
    """Raises SourceError for what cannot be expressed exactly."""
    roles = vocabulary.roles
    bos = roles.get("bos")
    if vocabulary.add_eos:
        raise SourceError(f"{where}: tokenizer.ggml.add_eos_token: an end after a prompt is not supported; {INSTEAD}")
    if vocabulary.add_bos and bos is None:
        raise SourceError(
            f"{where}: a BOS goes before each text, but no tokenizer.ggml.bos_token_id names it; {INSTEAD}"
        )
    try:
        tokenizer = _spm(vocabulary) if vocabulary.pre is None else _bpe(vocabulary, vocabulary.pre)
    except ValueError as error:
        raise SourceError(f"{where}: the vocabulary cannot be expressed: {error}; {INSTEAD}") from error
    tokenizer.add_tokens(_added(vocabulary, str(metadata.get("general.name")).lower()))
    return TokenizerFiles(
        tokenizer_json=tokenizer.to_str(),
        chat_template=metadata.get("tokenizer.chat_template"),
        tool_use_template=metadata.get("tokenizer.chat_template.tool_use"),
        special_tokens={f"{role}_token": vocabulary.tokens[roles[role]] for role in _NAMED if role in roles},
        num_tokens=len(vocabulary.tokens),
        add_bos=vocabulary.add_bos,
        bos=bos,
        eos=roles.get("eos"),
        pad=roles.get("pad"),
    )


def _bpe(vocabulary: Vocabulary, pre: Pre) -> Tokenizer:
    for left, right in vocabulary.merges:
        if not (left in vocabulary.ids and right in vocabulary.ids and left + right in vocabulary.ids):
            raise ValueError(f"merge {left!r} {right!r} is of or makes what is no token")
    model = models.BPE(
        dict(vocabulary.ids),
        list(vocabulary.merges),
        ignore_merges=pre.ignore_merges,
        byte_fallback=not pre.byte_level,
    )
    tokenizer = Tokenizer(model)
    splits = [pre_tokenizers.Split(Regex(split), "isolated") for split in pre.splits]
    if pre.byte_level:
        in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, in_bytes])
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer
    _require_byte_tokens(vocabulary)
    _require_reachable_newlines(vocabulary, model)
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = _spm_decoder(strip=False)
    return tokenizer


def _spm(vocabulary: Vocabulary) -> Tokenizer:
    _require_byte_tokens(vocabulary)
    tokenizer = Tokenizer(models.BPE(dict(vocabulary.ids), spm_merges(vocabulary), byte_fallback=True))
    prefix = [normalizers.Prepend(_SPACE)] if vocabulary.add_space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    tokenizer.decoder = _spm_decoder(strip=vocabulary.add_space_prefix)
    return tokenizer


def _spm_decoder(strip: bool) -> decoders.Decoder:
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if strip:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


def _require_byte_tokens(vocabulary: Vocabulary) -> None:
    for byte in range(256):
        if f"<0x{byte:02X}>" not in vocabulary.ids:
            raise ValueError(f"no token <0x{byte:02X}>, so not every text can be written")


def _require_reachable_newlines(vocabulary: Vocabulary, model: models.BPE) -> None:
    """llama.cpp takes a run of newlines that is a token as that token; here merges must lead to it."""
    for token, index in vocabulary.ids.items():
        if not token.strip("\n") and [found.id for found in model.tokenize(token)] != [index]:
            raise ValueError(f"no merges lead to token {index}, {len(token)} newlines")


def _added(vocabulary: Vocabulary, model_name: str) -> list[AddedToken]:
    """Control and user-defined tokens, found in a text before anything else, ascending by id."""
    # Phi-3's control tokens swallow the spaces after them: a GGUF cannot say so, and llama.cpp goes by the name.
    rstrip = "phi-3" in model_name or "phi3" in model_name
    lstrip = vocabulary.pre.lstrip if vocabulary.pre else ()
    return [
        AddedToken(
            text,
            normalized=False,
            special=kind in _SPECIAL,
            lstrip=text in lstrip,
            rstrip=rstrip and text not in _PHI_3_KEEPS_AFTER,
        )
        for text, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind in _SPECIAL or kind is TokenType.USER_DEFINED
    ]
