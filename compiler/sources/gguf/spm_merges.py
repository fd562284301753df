"""An SPM vocabulary's merges as BPE: of all neighbours that make a token, the one of the highest score merges first.

Scores order tokens; BPE ranks pairs. So the ranks of a token's pairs follow one another, in whatever order: two of them
never compete for a symbol (tests/sources/test_spm_merges.py). Tokens of one score have no order here, though llama.cpp
has one (the leftmost in the text): a file with such is refused.
"""

from collections.abc import Collection, Container

from llmc.compiler.sources.gguf.roles import TokenType
from llmc.compiler.sources.gguf.vocabulary import Vocabulary

_SPACE = "\u2581"


def spm_merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, best first. ValueError where ranks cannot say the order."""
    mergeable = {
        token: float(score)
        for token, kind, score in zip(vocabulary.tokens, vocabulary.types, vocabulary.scores, strict=True)
        if kind in (TokenType.NORMAL, TokenType.UNUSED) or (kind is TokenType.USER_DEFINED and _SPACE in token)
    }
    _require_characters(mergeable)
    merges: list[tuple[str, str]] = []
    previous: tuple[float, str] | None = None
    for token, score in sorted(mergeable.items(), key=lambda item: (-item[1], vocabulary.ids[item[0]])):
        if not (pairs := pairs_of(token, mergeable)):
            continue
        if previous is not None and previous[0] == score:
            raise ValueError(f"tokens {previous[1]!r} and {token!r} have one score, {score:g}, so neither comes first")
        previous = score, token
        merges += pairs
    return merges


def _require_characters(mergeable: Collection[str]) -> None:
    """ValueError for a token that llama.cpp makes of a character that is no token: here that is bytes by then."""
    absent = set().union(*mergeable).difference(mergeable)
    for token in mergeable if absent else ():
        if not absent.isdisjoint(token) and pairs_of(token, absent.union(mergeable)):
            raise ValueError(f"token {token!r} is made of characters that are no tokens")


def pairs_of(token: str, tokens: Container[str]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes this one."""
    cuts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
    return [(left, right) for left, right in cuts if left in tokens and right in tokens]
