"""Merges in ranks of pairs, against SPM's own rule over random vocabularies and texts."""

import random
from collections.abc import Mapping

import numpy as np
from tokenizers import Tokenizer, models

from llmc.compiler.sources.gguf.roles import TokenType
from llmc.compiler.sources.gguf.spm_merges import spm_merges
from llmc.compiler.sources.gguf.vocabulary import Vocabulary


def vocabulary_of(tokens: list[str]) -> Vocabulary:
    """Best first."""
    return Vocabulary(
        pre=None,
        tokens=tuple(tokens),
        types=(TokenType.NORMAL,) * len(tokens),
        ids={token: i for i, token in enumerate(tokens)},
        scores=-np.arange(len(tokens), dtype=np.float32),
        merges=(),
        roles={},
        ends=(),
        add_bos=False,
        add_eos=False,
        add_space_prefix=False,
    )


def by_scores(text: str, ids: Mapping[str, int]) -> list[str]:
    """The two neighbours that make the best token, the leftmost of them, until there are none."""
    symbols = list(text)
    while True:
        made = [(ids[pair], i) for i in range(len(symbols) - 1) if (pair := symbols[i] + symbols[i + 1]) in ids]
        if not made:
            return symbols
        _, at = min(made)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


def test_ranks_of_pairs_merge_as_scores_of_tokens_do() -> None:
    """Few letters, so that tokens overlap themselves and each other in every way."""
    chance = random.Random(7)
    for _ in range(400):
        letters = list("abc"[: chance.randint(1, 3)])
        tokens = list(letters)
        for _ in range(chance.randint(3, 12)):
            made = chance.choice(tokens) + chance.choice(tokens)
            if made not in tokens and len(made) <= 8:
                tokens.append(made)
        vocabulary = vocabulary_of(tokens[len(letters) :] + letters)
        tokenizer = Tokenizer(models.BPE(dict(vocabulary.ids), spm_merges(vocabulary)))
        for _ in range(10):
            text = "".join(chance.choices(letters, k=chance.randint(2, 24)))
            assert tokenizer.encode(text).tokens == by_scores(text, vocabulary.ids)
