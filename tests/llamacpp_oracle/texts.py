"""Texts that tokenizers disagree on: spaces, digits, contractions, scripts, marks, emoji, code, control tokens."""

import random

_WRITTEN = [
    "",
    " ",
    "  ",
    "\n",
    "\n\n\n",
    "   \n  \n",
    "\r\n\r\n",
    "\t\tx",
    " hello",
    "hello ",
    "hello  world   again    and     more",
    "a\n\n  b\n c\t d  \n",
    "x  yy\t(zz) 12345",
    "0 1 12 123 1234 12345 123456 1234567 12345678",
    "3.14159 -1,000,000.00 1e-9 0x1F 2024-11-30 12:45",
    "abc1234def56 7x ab 1 ab  12 ab   123456",
    "\u0661\u0662\u0663 \u0664\u0665\u0666\u0667 \u00bd \u2167 \u00b2x\u2082 1\u0662345",
    "I'll don't we're it's I've I'm he'd 's 't",
    "I'LL DON'T WE'RE IT'S I'VE I'M HE'D It'S 'S",
    "\u2019s it\u2019s '\u017f 'll' ''re x'sx 'vE",
    "'sx x'sx it'sx 'llama l'llama 'dark o'dark",
    "x" + " " * 7,
    " " * 13 + "x" + " " * 5,
    "The Quick BROWN fOx JumpsOver theLazyDog HTTPServer iOS",
    "\u00c9COLE na\u00efve \u00c5ngstr\u00f6m STRASSE stra\u00dfe \u0130stanbul \u01c4 \u0416\u0417\u0428 \u0436\u0437\u0448 \u0391\u03b2\u0393",  # noqa: E501
    "\u4f60\u597d\u4e16\u754c\uff0c\u8fd9\u662f2024\u5e74\u3002 \u4f60\u597d world \u4e16\u754c",
    "\u3053\u3093\u306b\u3061\u306f \u30ab\u30bf\u30ab\u30ca \uff76\uff80\uff76\uff85 \u6f22\u5b57\u304b\u306a\u4ea4\u3058\u308a",  # noqa: E501
    "\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8 \u3131\u3134\u3137 \u1112\u1161\u11ab",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u060c \u0645\u0631\u062d\u0628\u0627 \u061f \u0642\u064e\u0644\u0652\u0628",  # noqa: E501
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0964 \u0e44\u0e17\u0e22 \u0e01\u0e33 \u10e5\u10d0\u10e0\u10d7\u10e3\u10da\u10d8 \u0570\u0561\u0575",  # noqa: E501
    "e\u0301a\u0308 \u0301x \u0301 n\u0303o\u0302 a\u0301\u0301b",
    "\U0001f600\U0001f601 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f44b\U0001f3fd x\ufe0f",
    "\u00a0a\u2003b\u3000c\u2028d\u0085e\u200bf\u2009\u2009g \u3000\u3000h",
    "\u3000\u3001\u3002\uff01\uff08\u4f8b\uff09 \u300c\u4f8b\u300d\u2026\u2026 \u201cq\u201d\u2014\u2018r\u2019",
    "(hello) [world] {x} <y> \"q\" 'r' `s` *t* _u_ -v- ~w~",
    "!!! ??? ... ,,, ;;; ::: --- === +++ $$$ %%% ^^^ &&& ||| ### @@@",
    "a+b=c; x<y>z $5 #tag @user 50% a^b |c| ~d \u20ac10 \u00a35 \u2192 \u2211 \u00d7",
    "def f(x):\n    return x**2 + 1  # note\n\n\nclass A:\n\tpass\n",
    'for (int i=0; i<10; ++i) { printf("%d\\n", a[i]); } // end\r\n',
    "https://example.org/a/b?c=d&e=%20#f C:\\dir\\file.txt ../x/y.z",
    "<html><body>\n<p class='a'>x</p>\n</body></html>",
    "/* c */\n// d\n/e/f/\n",
    "IMGIMGABZ IMGIMGABCDEZ <sentinel:12> <sentinel:x>",
    "kuchyz zdravy \u2581lower\u2581one \uff5cbar\uff5c",
    "<s>hi</s> <unk><|im_start|>user\n hi there<|im_end|>\n<|im_start|>",
    "<s> a <unk> b </s> c <|endoftext|> d <|im_end|>  \n e",
    ".\n/ .\n/ x.\n/y !\r\n// .\n/z",
    "<think>\n a <think> b<think>c  <|spaced|>  d",
    "<\uff5cUser\uff5c>hello<\uff5cAssistant\uff5c><mask> and  <mask>",
    "\U00020000\u4e00\u9fa5\u9fff\u3400 \U0001d49c\U0001d4b6 \ufffd \u007f\u0001\u001f",
    "\ufb01 \ufb02 \ufb00x \u1e9e \u02b0 \u01c5 \u2170\u2160 \u24b6",
    " \n \n  x\n\n  y \n",
    "word" * 12 + " " * 40 + "\n" * 12 + "." * 12 + "0" * 12,
]

_PARTS = [
    *"abcABC xyz  \n\n\t\r.,!?'\"-_()[]<>/\\|$+=^~`@#%&*:;0123456789",
    *("'s", "'LL", "'Re", " the", " The", "ing", "  ", "\n\n", "   \n  ", "12345678", "    "),
    *("\u00c9", "\u00ef", "\u4f60\u597d", "\u3053\u308c", "\u30ab", "\ud55c\uad6d", "\u0627\u0644", "\u0661\u0662"),
    *("\u0939\u093f", "e\u0301", "\U0001f600", "\u200d", "\u00a0", "\u3000", "\u2028", "\u0085", "\u00bd", "\u2167"),
    *("\u20ac", "\u2026", "\u3002", "\uff0c", "\u300c", "\uff5c", "\u2581", "\u017f", "\u0130", "\U0001d49c"),
]


def texts() -> list[str]:
    """The written ones, and a hundred thrown together."""
    chance = random.Random(9)
    return _WRITTEN + ["".join(chance.choices(_PARTS, k=chance.randint(2, 12))) for _ in range(100)]
