"""Texts for `llmc verify`: prose, dialogue, code, tables, several languages and scripts, cut to many lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llmc.compiler.sources.probe_texts import PROBES

# Token counts of the texts that are compared, from one token to beyond a prefill chunk's half.
LENGTHS = (1, 2, 3, 4, 5, 7, 9, 12, 16, 23, 31, 33, 47, 64, 65, 90, 128, 200, 350, 600)

PASSAGES = (
    "The lighthouse keeper counted the ships every evening before he lit the lamp. In forty years he had never "
    "counted fewer than three, and never more than nineteen; on the night the fog came there were none at all, and "
    "he sat for a long time at the window with his pencil over the empty line. His daughter, who had come up from the "
    "village with bread and the post, asked him whether a zero was not also a number. He said that it was, but that a "
    "ledger of zeros was a different book from the one he had been given to keep.",
    'def running_median(values, window):\n    """Median of each run of `window` values."""\n    ordered = []\n'
    "    for i, value in enumerate(values):\n        bisect.insort(ordered, value)\n        if i >= window:\n"
    "            ordered.pop(bisect.bisect_left(ordered, values[i - window]))\n        if i + 1 >= window:\n"
    "            middle = window // 2\n            yield ordered[middle] if window % 2 else "
    "(ordered[middle - 1] + ordered[middle]) / 2\n\n\nassert list(running_median([5, 1, 4, 2], 3)) == [4, 2]\n",
    "Water boils at 100 degrees Celsius at sea level, at about 93 degrees in Denver and at 71 degrees on the summit of "
    "Mount Everest, because the pressure of the air above it falls with height. Cooks who move to the mountains learn "
    "to give beans an extra hour. The same fact runs backwards in a pressure cooker: at twice the pressure of the "
    "atmosphere the water stays liquid up to 120 degrees, and the beans are done in twenty minutes.",
    "Die Maschine war alt, aber sie lief. Jeden Morgen um sechs öffnete Frau Krüger den Schuppen, legte den Hebel um "
    "und wartete, bis das Summen gleichmäßig wurde. « Encore un jour », sagte sie dann, weil ihr Großvater aus Lyon "
    "gekommen war. El motor respondía siempre con el mismo temblor; 机器 tembló, пыль поднялась, и день начался. "
    "おはようございます, murmelte der Lehrling, der Japanisch lernte, und 😀 stand auf seinem Becher.",
    "| quarter | revenue | costs | margin |\n|---|---:|---:|---:|\n| Q1 | 1,204.50 | 998.20 | 17.1 % |\n"
    "| Q2 | 1,377.00 | 1,010.75 | 26.6 % |\n| Q3 | 1,150.25 | 1,190.00 | -3.5 % |\n"
    "| Q4 | 1,600.00 | 1,120.10 | 30.0 % |\n"
    "\nQ: Which quarter lost money, and why might that be? A: The third. Costs rose while revenue fell, which often "
    "happens when stock is bought ahead of the winter season.",
)


CHATS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "Hello"}],
    [{"role": "user", "content": "  two  spaces \n\n and a naïve 😀 世界\n"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sky blue?"}],
    [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "And def f(x): return x**2?"},
    ],
    [{"role": "assistant", "content": "I begin."}, {"role": "user", "content": ""}],
)


def texts() -> list[str]:
    """Everything built in that is encoded and decoded: what tokenizers differ on, and the passages."""
    return [*PROBES, *PASSAGES]


def sequences(encode: Callable[[str], list[int]], longest: int) -> list[list[int]]:
    """Token sequences of LENGTHS tokens each, cut from the passages (each starts where a text starts).

    None has more than `longest` tokens.
    """
    encoded = [encode(p) for p in PASSAGES]
    return [_cut(encoded, i, min(length, longest)) for i, length in enumerate(LENGTHS)]


def _cut(encoded: Sequence[list[int]], first: int, length: int) -> list[int]:
    ids = list(encoded[first % len(encoded)])
    following = first
    while len(ids) < length:
        following += 1
        ids += encoded[following % len(encoded)]
    return ids[:length]
