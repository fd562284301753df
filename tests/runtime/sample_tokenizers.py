"""Small tokenizers of the kinds that models have: byte-level, SentencePiece with byte fallback, metaspace."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tests.runtime.engine_folders import byte_level_tokenizer

CONTROL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
WORDS = ["he", "hel", "hell", "hello", "▁h", "▁hello", "▁▁", "▁▁▁", "世", "界", "世界", "é", "\n\n", ".", ","]


def _byte_fallback_model() -> models.BPE:
    letters = [chr(c) for c in range(33, 127)]
    merges = [("h", "e"), ("he", "l"), ("hel", "l"), ("hell", "o"), ("▁", "h"), ("▁", "▁"), ("▁▁", "▁"), ("世", "界")]
    pieces = [*CONTROL, *(f"<0x{b:02X}>" for b in range(256)), "▁", "\n", *letters, *WORDS]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    return models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")


def _with_control(tokenizer: Tokenizer, **flags: bool) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False, **flags) for t in CONTROL])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer


def llama2_like() -> Tokenizer:
    tokenizer = Tokenizer(_byte_fallback_model())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _with_control(tokenizer)


def gemma_like() -> Tokenizer:
    tokenizer = Tokenizer(_byte_fallback_model())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _with_control(tokenizer, rstrip=True)


def metaspace() -> Tokenizer:
    tokenizer = Tokenizer(_byte_fallback_model())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first", split=False)]
    )
    return _with_control(tokenizer)


KINDS = {
    "byte_level": byte_level_tokenizer,
    "llama2": llama2_like,
    "gemma": gemma_like,
    "metaspace": metaspace,
}
