"""Messages between an engine's process and the one that serves: msgpack behind their length, over a stream socket.

Both ends are ours, yet nothing is taken on trust: a frame is bounded before it is read, holds plain values only, and is
a list that begins with its kind. What does not fit ends the connection, and with it the child.
"""

import struct
from typing import Any

import msgpack

MAX_FRAME = 32 << 20  # bytes; the largest is a prompt, or the statistics of a huge pool
_ANY_TEXT = "surrogatepass"  # a salt may be any str
_LENGTH = struct.Struct(">I")

Message = list[Any]


class BrokenFrame(Exception):
    """The other side does not speak this protocol."""


def frame(*message: Any) -> bytes:
    """A message, its kind first, as the bytes to send."""
    body = msgpack.packb(message, unicode_errors=_ANY_TEXT)
    if len(body) > MAX_FRAME:
        raise BrokenFrame(f"a message {message[0]!r} of {len(body)} bytes, at most {MAX_FRAME} are sent")
    return _LENGTH.pack(len(body)) + bytes(body)


class Frames:
    """Puts together what arrives in pieces."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, piece: bytes) -> list[Message]:
        """The messages that are complete now. Raises BrokenFrame."""
        buffer = self._bytes
        buffer += piece
        messages, at = [], 0
        while len(buffer) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, at)
            if size > MAX_FRAME:
                raise BrokenFrame(f"a frame of {size} bytes, at most {MAX_FRAME} are read")
            end = at + _LENGTH.size + size
            if len(buffer) < end:
                break
            messages.append(_read(bytes(buffer[at + _LENGTH.size : end])))
            at = end
        del buffer[:at]
        return messages


def _read(body: bytes) -> Message:
    try:
        message = msgpack.unpackb(
            body, raw=False, strict_map_key=False, ext_hook=_no_extension, unicode_errors=_ANY_TEXT
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BrokenFrame(f"a frame of {len(body)} bytes is no message: {error}") from error
    if not isinstance(message, list) or not message or not isinstance(message[0], str):
        raise BrokenFrame(f"a frame of {len(body)} bytes holds no list that begins with a kind")
    return message


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension {code} of {len(data)} bytes: only plain values are sent")
