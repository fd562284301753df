"""What a token is for: text, control, the end of a text. As llama.cpp has it, which trusts some names over the file.

A file states few ends (eos, eot, eom), and converters have marked control tokens as text; llama.cpp ends a text at
every token of these names, and never lets text spell one.
"""

from collections.abc import Mapping, MutableSequence
from enum import IntEnum


class TokenType(IntEnum):
    """tokenizer.ggml.token_type."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_BAR, _SPACE = "\uff5c", "\u2581"  # as DeepSeek spells its control tokens

_ENDS = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|endoftext|>", "<|end_of_text|>"),
        *("<|eom_id|>", "<end_of_utterance>", "<eos>", "</s>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~["),
        *("<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<|tool_response>"),
        f"<{_BAR}end{_SPACE}of{_SPACE}sentence{_BAR}>",
    )
)

# Filling in the middle: role -> names. Padding, a file's and a repository's name end a text.
_FILLING: Mapping[str, tuple[str, ...]] = {
    "fim_pre": (
        *["<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "<|code_prefix|>", "<|prefix|>"],
        f"<{_BAR}fim{_SPACE}begin{_BAR}>",
        f"{_SPACE}<PRE>",
    ),
    "fim_suf": (
        *["<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "<|code_suffix|>", "<|suffix|>"],
        f"<{_BAR}fim{_SPACE}hole{_BAR}>",
        f"{_SPACE}<SUF>",
    ),
    "fim_mid": (
        *["<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "<|code_middle|>", "<|middle|>"],
        f"<{_BAR}fim{_SPACE}end{_BAR}>",
        f"{_SPACE}<MID>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
_FILLING_ENDS = ("fim_pad", "fim_rep", "fim_sep")
_SPOKEN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # gpt-oss: shown, so text rather than control
_STATED_ENDS = ("eos", "eot", "eom")


def settle_roles(
    ids: Mapping[str, int], types: MutableSequence[TokenType], stated: Mapping[str, int]
) -> tuple[int, ...]:
    """Every id that ends a text, ascending; `types` are changed to what the names say.

    `ids` of all tokens by text; `stated`: those that the file names, as "eos", "fim_pad" and so on.
    """
    ends = {ids[name] for name in _ENDS & ids.keys()}
    control = set(ends)
    for role, names in _FILLING.items():
        named = sorted(ids[name] for name in names if name in ids)[:1]
        control.update(named if role not in stated else ())
        if role in _FILLING_ENDS:
            ends.update([stated[role]] if role in stated else named)
    for token in control:
        types[token] = TokenType.CONTROL
    for name in _SPOKEN:
        if name in ids:
            types[ids[name]] = TokenType.USER_DEFINED
    ends |= {stated[role] for role in _STATED_ENDS if role in stated}
    _except_in_families(ids, types, ends)
    return tuple(sorted(ends))


def _except_in_families(ids: Mapping[str, int], types: MutableSequence[TokenType], ends: set[int]) -> None:
    """Two names that mean something else in some vocabularies, which llama.cpp tells by other names in them."""
    present = {name for name in _ENDS if ids.get(name) in ends}
    calls = {"<|return|>", "<|call|>"} <= present or {"<|return|>", "<|calls|>"} <= present
    if "<|end|>" in present and (calls or ("<|flush|>" in present and {"<|call|>", "<|calls|>"} & present)):
        ends.discard(ids["<|end|>"])
        types[ids["<|end|>"]] = TokenType.USER_DEFINED
    if "</s>" in present and ("<|tool_response>" in present or ids.get("<|plamo:eos|>") in ends):
        ends.discard(ids["</s>"])
        types[ids["</s>"]] = TokenType.NORMAL
