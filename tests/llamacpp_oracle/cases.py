"""Which vocabularies llama.cpp is asked about, beside the one of each `tokenizer.ggml.pre`."""

from dataclasses import dataclass, replace

from llmc.compiler.sources.gguf.roles import TokenType

from .texts import texts
from .vocabularies import FIRST_ROLE, Vocabulary, byte_level, spm, spm_as_bpe, with_roles

_NORMAL, _CONTROL, _USER = TokenType.NORMAL, TokenType.CONTROL, TokenType.USER_DEFINED


@dataclass(frozen=True)
class Case:
    vocabulary: Vocabulary
    texts: tuple[str, ...]


def cases() -> dict[str, Case]:
    """By name, each with something that a file says or leaves out."""
    hard = tuple(texts())
    control = tuple(text for text in hard if "<" in text)
    return {
        "spm": Case(spm(), hard),
        "spm without prefix": Case(spm(add_space_prefix=False), hard),
        "spm without bos": Case(spm(add_bos_token=False), control),
        "spm of Phi-3": Case(_named(spm(), "Phi-3 mini"), control),
        "bpe of Phi-3": Case(_named(byte_level("llama-bpe"), "my-phi3"), control),
        "gemma4": Case(spm_as_bpe(None, "gemma4"), hard),
        "gemma4 by pre": Case(spm_as_bpe("gemma4", add_bos_token=False), control),
        "sarvam-moe": Case(spm_as_bpe("sarvam-moe"), control),
        "bos by file": Case(byte_level("gpt-2", add_bos_token=True), control),
        "no bos by file": Case(byte_level("llama-bpe", add_bos_token=False), control),
        **{name: Case(roles, (" ".join([*roles.types][FIRST_ROLE:]),)) for name, roles in _roles().items()},
    }


def _named(base: Vocabulary, name: str) -> Vocabulary:
    """A model of this name, with a token that every Phi-3 has."""
    types = {**base.types, "<|endoftext|>": _CONTROL}
    scores = None if base.scores is None else [*base.scores, -1000.0]
    return replace(base, types=types, scores=scores, metadata={**base.metadata, "general.name": name})


def _roles() -> dict[str, Vocabulary]:
    """What names make of tokens."""
    bar, space = "\uff5c", "\u2581"
    ends: tuple[str, ...] = (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|flush|>",
        "<end_of_turn>",
        "</s>",
        "<|eom_id|>",
        "[e~[",
    )
    ends += ("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>")
    ends += (f"<{bar}end{space}of{space}sentence{bar}>", "<|endoftext|>")
    filling = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
    old = ("<PRE>", "<SUF>", "<MID>", "<PAD>", "<REPO>")
    deepseek = tuple(f"<{bar}fim{space}{what}{bar}>" for what in ("begin", "hole", "end"))
    harmony = ("<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>", "<|end|>")
    return {
        "ends by name": with_roles(dict.fromkeys(ends, _NORMAL)),
        "filling": with_roles(dict.fromkeys(filling, _USER)),
        "filling of old": with_roles(dict.fromkeys(old, _NORMAL)),
        "filling of DeepSeek": with_roles(dict.fromkeys(deepseek, _NORMAL)),
        "filling by file": with_roles(
            dict.fromkeys(("<|fim_pad|>", "x1", "x2", "<|file_sep|>"), _NORMAL),
            fim_pad_token_id=FIRST_ROLE + 1,
            fim_sep_token_id=FIRST_ROLE + 2,
        ),
        "harmony": with_roles(dict.fromkeys(harmony, _CONTROL), eos_token_id=FIRST_ROLE + 4),
        "solar": with_roles(dict.fromkeys(("<|flush|>", "<|calls|>", "<|end|>"), _CONTROL)),
        "harmony without calls": with_roles(dict.fromkeys(("<|return|>", "<|end|>"), _CONTROL)),
        "strike-through": with_roles(dict.fromkeys(("</s>", "<|tool_response>"), _CONTROL)),
        "ends by file": with_roles(
            dict.fromkeys(("<a>", "<b>", "<c>", "<d>"), _CONTROL),
            eos_token_id=FIRST_ROLE,
            eot_token_id=FIRST_ROLE + 1,
            eom_token_id=FIRST_ROLE + 2,
        ),
    }
