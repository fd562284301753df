"""Short texts on which tokenizers differ: what splits words, numbers and spaces, and what bytes and scripts become."""

PROBES = (
    "hello world",
    "Hello, World! (hello) [world] {x}",
    "I'll don't we're It'S I'LL DON'T",
    "1 23 456 7890 650841823 3.14 2024-11-30 1,204.50",
    " lead",
    "  two  spaces   three ",
    "a\n\n  b\r\n\tc\n",
    "\n",
    " ",
    "x  yy\t(zz)\u00a0w",
    "def f(x):\n    return x**2  # ok\n",
    "https://a.b/c_d?e=f&g=%20",
    "naïve café \uff21 \ufb01 e\u0301",
    "日本語の文 世界 你好",
    "مرحبا Привет नमस्ते 한국어",
    "😀 👍🏽 👨\u200d👩\u200d👧",
    "\u2581x \uff5c \ufffd \x00",
    "<s></s> <|im_end|> <unk> [INST] <think>x</think>",
)
