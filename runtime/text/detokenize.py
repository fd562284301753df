"""Ids to text, token by token: pieces never split a character, and join exactly to the decode of all ids.

Decoders are not local: a character's bytes may lie in several tokens, and the first word loses its leading
space. So each token is decoded together with a little context before it, and the context's own text is taken
off.
"""

from llmc.runtime.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"  # what decoders put for bytes that are no character, or not yet


class StreamDetokenizer:
    """One answer's text.

    `add` every token, then `finish`; the pieces join to `Tokenizer.decode` of the tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []  # the last tokens whose text is out
        self._context_text = ""
        self._pending: list[int] = []  # tokens whose text is not all out
        self._emitted = 0  # characters of the pending text that are out

    def add(self, token: int) -> str:
        """The text that this token settles; may be empty."""
        if self._tokenizer.is_silent(token):
            return ""
        self._pending.append(token)
        if token in self._tokenizer.byte_ids:
            # A run of byte tokens is decoded as a whole: one bad byte turns all of it to replacement
            # characters.
            return ""
        text = self._pending_text()
        if text.endswith(_REPLACEMENT):
            # The last character may still be completed by the next token's bytes; what is before it is
            # settled.
            piece = text[self._emitted : -1]
            self._emitted += len(piece)
            return piece
        piece = text[self._emitted :]
        self._move_context()
        return piece

    def finish(self) -> str:
        """The text that was held back."""
        return self._pending_text()[self._emitted :] if self._pending else ""

    def _pending_text(self) -> str:
        return self._tokenizer.decode(self._context + self._pending)[len(self._context_text) :]

    def _move_context(self) -> None:
        self._context = self._pending
        self._context_text = self._tokenizer.decode(self._context)
        self._pending = []
        self._emitted = 0
