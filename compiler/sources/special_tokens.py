"""Which ids begin a text, end it and fill it up. The one place that decides it, for every kind of source.

The tokenizer's own files have the word on what goes before a text; what else a model's settings name ends a text. An
id needs a row of the embedding: one without it is refused, or named where no text of a user leads to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmc.compiler.sources.errors import SourceError
from llmc.compiler.sources.model_source import ModelSource
from llmc.compiler.sources.tokenizer import TokenizerFiles
from llmc.runtime.artifact.manifest import SpecialTokens

_MOST_NAMED = 8


@dataclass(frozen=True)
class DecidedTokens:
    """The engine's special tokens, and in a line each where the model's files disagree about them."""

    tokens: SpecialTokens
    notices: tuple[str, ...]


def decide_tokens(source: ModelSource) -> DecidedTokens:
    """Raises SourceError for a special id that has no row, and for a vocabulary that is larger than the model's."""
    rows = int(source.config.get_text_config().vocab_size)
    _refuse_outside(source, rows)
    tokenizer, stated = source.tokenizer, source.generation
    if tokenizer is None:
        eos = stated.eos or _default_eos(source, rows)
        return DecidedTokens(SpecialTokens(stated.bos, eos, stated.pad, False), ())
    notices = [*tokenizer.notices, *_without_row(source, tokenizer, rows)]
    own = {name: _with_row(getattr(tokenizer, name), rows) for name in ("bos", "eos", "pad")}
    if tokenizer.bos is not None and stated.bos not in (None, tokenizer.bos):
        notices.append(
            f"BOS is {_named(tokenizer, tokenizer.bos)}, as the tokenizer has it; the model's settings say "
            f"{_named(tokenizer, stated.bos)}"
        )
    if own["eos"] is not None and stated.eos and own["eos"] not in stated.eos:
        others = ", ".join(_named(tokenizer, token) for token in stated.eos)
        notices.append(
            f"the tokenizer's end of text is {_named(tokenizer, own['eos'])}, the model's settings say {others}: "
            "each of them ends a text"
        )
    eos = tuple(sorted({*stated.eos, *([own["eos"]] if own["eos"] is not None else [])}))
    pad = own["pad"] if own["pad"] is not None else stated.pad
    tokens = SpecialTokens(own["bos"], eos or _default_eos(source, rows), pad, tokenizer.add_bos)
    return DecidedTokens(tokens, tuple(notices))


def _refuse_outside(source: ModelSource, rows: int) -> None:
    stated, tokenizer = source.generation, source.tokenizer
    named = [("bos_token_id", stated.bos), *(("eos_token_id", token) for token in stated.eos)]
    named.append(("pad_token_id", stated.pad))
    for name, token in named:
        if token is not None and token >= rows:
            raise SourceError(
                f"{source.path}: {name} is {token}, but the model has rows for ids 0..{rows - 1} only; correct it in "
                "config.json or generation_config.json"
            )
    if tokenizer is not None and tokenizer.add_bos and tokenizer.bos is not None and tokenizer.bos >= rows:
        raise SourceError(
            f"{source.path}: the tokenizer puts {_named(tokenizer, tokenizer.bos)} before each text, but the model has "
            f"rows for ids 0..{rows - 1} only: it is another model's tokenizer"
        )


def _without_row(source: ModelSource, tokenizer: TokenizerFiles, rows: int) -> list[str]:
    """Names tokens that were added to a vocabulary and not to the model; SourceError where plain text leads to some."""
    if tokenizer.num_tokens <= rows:
        return []
    inner = tokenizer.inner
    added = inner.get_added_tokens_decoder()
    lacking = {token: text for text, token in inner.get_vocab(with_added_tokens=True).items() if token >= rows}
    shown = ", ".join(f"{text!r} ({token})" for token, text in sorted(lacking.items())[:_MOST_NAMED])
    more = f" and {len(lacking) - _MOST_NAMED} more" if len(lacking) > _MOST_NAMED else ""
    if any(token not in added for token in lacking):
        raise SourceError(
            f"{source.path}: the tokenizer has {tokenizer.num_tokens} ids, the model rows for {rows}: {shown}{more} "
            "cannot be fed; it is another model's tokenizer"
        )
    return [f"tokens that cannot be fed, the model has no row for them: {shown}{more}"]


def _with_row(token: int | None, rows: int) -> int | None:
    return token if token is not None and token < rows else None


def _default_eos(source: ModelSource, rows: int) -> tuple[int, ...]:
    """Of a model of whose end nobody says anything: what transformers' class has for such a one."""
    default = getattr(source.config.get_text_config(), "eos_token_id", None)
    return (default,) if isinstance(default, int) and 0 <= default < rows else ()


def _named(tokenizer: TokenizerFiles, token: int | None) -> str:
    text = None if token is None else tokenizer.inner.id_to_token(token)
    return f"{token} ({text!r})" if text is not None else f"{token} (no token)"
