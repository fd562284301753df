"""Ids to text, token by token: pieces never split a character, and join exactly to what the answer adds to the text
of its prompt: the decode of both less the decode of the prompt.

Decoders are not local: a character's bytes may lie in several tokens, and the first word of a text loses its leading
space. So each token is decoded together with a little context before it, and the context's own text is taken
off. The first context is the end of the prompt.
"""

from collections.abc import Sequence

from llmc.runtime.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"  # what decoders put for bytes that are no character, or not yet
_PROMPT_CONTEXT = 4  # tokens: of a character that is cut there may be three bytes, and a whole one before them


class StreamDetokenizer:
    """One answer's text, after the ids of its prompt.

    `add` every token, then `finish`; the pieces join to the end of `Tokenizer.decode` of prompt and answer that its
    decode of the prompt does not have.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._context = _end_of(prompt, tokenizer)  # the last tokens whose text is out
        self._context_text = tokenizer.decode(self._context)
        self._pending: list[int] = []  # tokens whose text is not all out
        self._emitted = 0  # characters of the pending text that are out
        self._num_out = 0

    @property
    def num_chars(self) -> int:
        """Characters of the answer so far, those that are held back included."""
        return self._num_out + len(self.finish())

    def add(self, token: int) -> str:
        """The text that this token settles; may be empty."""
        piece = "" if self._tokenizer.is_silent(token) else self._add(token)
        self._num_out += len(piece)
        return piece

    def finish(self) -> str:
        """The text that was held back."""
        return self._beyond_context(self._decode_pending())[self._emitted :] if self._pending else ""

    def _add(self, token: int) -> str:
        self._pending.append(token)
        if token in self._tokenizer.byte_ids:
            # A run of byte tokens is decoded as a whole: one bad byte turns all of it to replacement
            # characters.
            return ""
        whole = self._decode_pending()
        text = self._beyond_context(whole)
        if whole.endswith(_REPLACEMENT):
            # The last character may still be completed by the next token's bytes; what is before it is
            # settled.
            piece = text[self._emitted : -1]
            self._emitted += len(piece)
            return piece
        piece = text[self._emitted :]
        self._move_context()
        return piece

    def _decode_pending(self) -> str:
        return self._tokenizer.decode(self._context + self._pending)

    def _beyond_context(self, whole: str) -> str:
        """What pending tokens added: more than follows the context's text where they complete its last character."""
        return whole[_num_common(self._context_text, whole) :]

    def _move_context(self) -> None:
        self._context = self._pending
        self._context_text = self._tokenizer.decode(self._context)
        self._pending = []
        self._emitted = 0


def _end_of(prompt: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """The last tokens of a prompt that have a text: as many as what follows depends on, with runs of bytes whole."""
    end: list[int] = []
    for token in reversed(prompt):
        if len(end) >= _PROMPT_CONTEXT and end[-1] not in tokenizer.byte_ids:
            break
        if not tokenizer.is_silent(int(token)):
            end.append(int(token))
    return end[::-1]


def _num_common(a: str, b: str) -> int:
    """How many characters two texts begin with alike."""
    if b.startswith(a):
        return len(a)
    shorter = min(len(a), len(b))
    return next((at for at in range(shorter) if a[at] != b[at]), shorter)
