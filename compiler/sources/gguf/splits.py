r"""How each `tokenizer.ggml.pre` splits a text before BPE: llama.cpp's rules, as expressions for `tokenizers`.

A GGUF names its split and does not carry it. These are the facts behind the names; tests/sources/test_gguf_ids.py
holds every name against llama.cpp's own ids. Each expression isolates what it matches, piece by piece and one after
another; what none matches stays as it is. Where llama.cpp departs from a model's tokenizer.json (it knows no upper
and lower case beyond ASCII, say) so do we. In llama.cpp `\d` is ASCII and no range of characters holds a space, hence
the explicit digits and `&&\S` here.
"""

from dataclasses import dataclass

_CONTRACTION = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
# Digits in threes, counted from the right; llama.cpp joins what precedes them to the first group.
_THREES = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_DIGITS_BY_3 = rf"{_THREES}|\P{{N}}++(?:{_THREES}|\z)"
_LINES = r"[^\n]+|\n+"
_KANA_AND_HAN = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+"
_CHINESE = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}&&\S]+"
_HAN = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}\x{2B820}-\x{2CEAF}"
    r"\x{2CEB0}-\x{2EBEF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
)
_ASIAN = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}"
    r"\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}"
    r"\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}&&\S]+"
)
_EAST_ASIAN = (
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+"
    r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}"
    r"\x{FE30}-\x{FE4F}]+"
    r"|[\x{3105}-\x{312F}]+|" + _KANA_AND_HAN
)
_CASED_LETTERS = (
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}"
    r"\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}"
    r"\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}"
    r"\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}"
    r"\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}"
    r"\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}"
    r"\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}"
    r"\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}"
    r"\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}"
    r"\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}"
    r"\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)


def _words_by_case(letters: str, suffix: str = "") -> str:
    """A word ends where lower case ASCII is followed by upper case."""
    upper, lower = f"[{letters}&&[^a-z]]", f"[{letters}&&[^A-Z]]"
    return f"{_LEAD}{upper}*{lower}+{suffix}|{_LEAD}{upper}+{lower}*{suffix}"


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTION + "|" + _LEAD + r"\p{L}+|\p{N}{1,3}|" + _SYMBOLS
_QWEN2 = _CONTRACTION + "|" + _LEAD + r"\p{L}+|\p{N}|" + _SYMBOLS
_MARKED_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
)
_DEEPSEEK3 = (r"\p{N}{1,3}", _KANA_AND_HAN, _MARKED_WORDS + r"[\r\n]*|" + _SPACES)
_GPT4O = _words_by_case(r"\p{L}", _CONTRACTION + "?") + r"|\p{N}{1,3}|" + _SLASHED
_WITHOUT_CASE = _LEAD + r"[\p{L}\p{M}]+" + _CONTRACTION + "?"
_SENTENCES = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+"


_EXAONE = (
    _CONTRACTION + "|" + _LEAD + r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
    r"|\s+(?!\S)|\s+"
)
_SPACES_BY_POWERS = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")) + r"|\s"
_KIMI = rf"[{_HAN}]+|{_LEAD}[\p{{L}}&&[^{_HAN}]]+{_CONTRACTION}?|\p{{N}}{{1,3}}|{_SYMBOLS}"
_FULL_WIDTH = r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3001}-\x{3002}]+"
_DEEPSEEK = (r"[\r\n]", rf"\s?[{_CASED_LETTERS}]+", _FULL_WIDTH, r"\s+\z", _CHINESE, r"\p{N}+")
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE, r"\p{N}")
_IMAGE_TOKENS = ("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z")
_CHAMELEON = (*_IMAGE_TOKENS, r"[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2)


@dataclass(frozen=True)
class Pre:
    """What a name stands for."""

    splits: tuple[str, ...]
    ignore_merges: bool = False
    """A piece that is a token stays whole, whether merges lead to it or not."""
    add_bos: bool = False
    """Where the file does not say."""
    always_bos: bool = False
    """Whatever the file says."""
    byte_level: bool = True
    """Bytes are spelled as GPT-2 spells them; else spaces are U+2581 and unknown characters <0xXX>, as in SPM."""
    lstrip: tuple[str, ...] = ()
    """Tokens that swallow the spaces before them."""


_KINDS: tuple[tuple[str, Pre], ...] = (
    ("gpt-2 phi-2 jina-es jina-de jina-v1-en gigachat a.x-4.0 mellum modern-bert mpt olmo jais", Pre((_GPT2,))),
    ("trillion exaone4 granite-docling roberta-bpe", Pre((_GPT2,))),
    ("jina-v2-es jina-v2-de jina-v2-code", Pre((_GPT2,), lstrip=("<mask>",))),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", Pre((r"\p{N}", _GPT2))),
    ("default", Pre((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))),
    ("falcon", Pre((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"))),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1", Pre((_LLAMA3,), ignore_merges=True, add_bos=True)),
    ("pixtral midm-2.0 lfm2 jina-v5-nano", Pre((_LLAMA3,), ignore_merges=True, add_bos=True)),
    ("dbrx smaug-bpe chatglm-bpe", Pre((_LLAMA3,))),
    ("glm4 glm5", Pre((_LLAMA3,), ignore_merges=True)),
    ("minicpm5", Pre((r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+")), ignore_merges=True)),
    ("jais-2", Pre((_LLAMA3.removesuffix(r"\s+(?!\S)|\s+") + _SPACES_BY_POWERS,))),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2", Pre((_QWEN2,))),
    ("qwen35", Pre((_QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"\s\p{L}", r"\s\p{L}\p{M}"),))),
    ("ufakzeka", Pre((_QWEN2.removeprefix(_CONTRACTION + "|"),))),
    ("laguna", Pre((_LINES, _QWEN2))),
    ("seed-coder", Pre((_QWEN2.replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+"),))),
    ("bailingmoe bailingmoe2 llada-moe", Pre((_QWEN2,))),
    ("exaone-moe", Pre((_EXAONE,))),
    ("tekken", Pre((_words_by_case(r"\p{L}") + r"|\p{N}|" + _SLASHED,), ignore_merges=True, add_bos=True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", Pre((_GPT4O,))),
    ("granite-embed-multi-97m", Pre((_GPT4O.replace(r"\p{L}&&", r"\p{L}\p{M}&&"),), ignore_merges=True)),
    ("tiny_aya cohere2moe", Pre((_DIGITS_BY_3, _WITHOUT_CASE + r"|\p{N}{1,3}|" + _SLASHED))),
    ("youtu", Pre((_EAST_ASIAN, _WITHOUT_CASE + r"|\p{N}|" + _SLASHED), ignore_merges=True)),
    ("kimi-k2", Pre((_KIMI,))),
    ("deepseek-llm", Pre(_DEEPSEEK)),
    ("deepseek-coder", Pre(_DEEPSEEK_CODER)),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", Pre(_DEEPSEEK3)),
    ("spark2_5", Pre((*_DEEPSEEK3[:2], _MARKED_WORDS + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"))),
    ("afmoe", Pre((_DIGITS_BY_3, _ASIAN, _DEEPSEEK3[2]))),
    ("poro-chat bloom gpt3-finnish", Pre((_SENTENCES,))),
    ("viking", Pre((_SENTENCES, r"\p{N}"))),
    ("superbpe", Pre((r"\p{N}+", r"(?=(?:[0-9]{3})+(?![0-9]))"))),
    ("chameleon", Pre(_CHAMELEON, add_bos=True)),
    ("gemma4 granite-embed-multi-311m", Pre((_LINES,), byte_level=False, always_bos=True)),
    ("sarvam-moe", Pre((_LINES,), byte_level=False)),
)

PRES = {name: pre for names, pre in _KINDS for name in names.split()}
