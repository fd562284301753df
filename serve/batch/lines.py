"""The input of a batch: where its lines lie, and which of them are no requests.

Lines are read once to learn that, and again when they are asked: a file may be larger than memory.
"""

import hashlib
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from llmc.serve.batch.failure import BatchRefused, BatchStopped
from llmc.serve.protocol.json_body import MAX_BODY_BYTES, json_type

URLS = ("/v1/chat/completions", "/v1/completions")
MAX_LINE_BYTES = MAX_BODY_BYTES + 65536  # the body, and what is around it


@dataclass(frozen=True)
class Problem:
    """Why a line is no request."""

    code: str
    message: str


@dataclass(frozen=True)
class Line:
    """`number` counts the file's lines from 1, blank ones too."""

    number: int
    offset: int
    length: int
    digest: bytes
    custom_id: str | None
    url: str = ""
    problem: Problem | None = None


@dataclass(frozen=True)
class BatchInput:
    path: Path
    digest: str
    lines: tuple[Line, ...]

    def body(self, source: BinaryIO, line: Line) -> dict[str, Any]:
        """Of a line without a problem, from the open file. Raises BatchStopped if it is another one by now."""
        source.seek(line.offset)
        text = source.read(line.length)
        if hashlib.sha256(text).digest() != line.digest:
            raise BatchStopped(f"{self.path}: line {line.number} has changed since the batch began")
        body = orjson.loads(text)["body"]
        assert isinstance(body, dict)
        return body


def read_input(path: Path) -> BatchInput:
    """Raises OSError, BatchRefused."""
    if path.exists() and not path.is_file():
        raise BatchRefused(f"{path}: is no regular file; lines are read again when they are asked, so write it to one")
    whole = hashlib.sha256()
    lines: list[Line] = []
    known: set[str] = set()
    with path.open("rb") as source:
        for number, (offset, text, length) in enumerate(_lines(source, whole), 1):
            if text.strip():
                line = _line(number, offset, text, length, known)
                known.add(line.custom_id or "")
                lines.append(line)
    return BatchInput(path, whole.hexdigest(), tuple(lines))


def _lines(source: BinaryIO, whole: "hashlib._Hash") -> Iterator[tuple[int, bytes, int]]:
    """Offset, text and length; of a line that is too long only the beginning."""
    offset = 0
    while text := source.readline(MAX_LINE_BYTES):
        whole.update(text)
        length = len(text)
        more = text
        while not more.endswith(b"\n") and (more := source.readline(MAX_LINE_BYTES)):
            whole.update(more)
            length += len(more)
        yield offset, text, length
        offset += length


def _line(number: int, offset: int, text: bytes, length: int, known: Set[str]) -> Line:
    custom_id, url = None, ""
    digest = hashlib.sha256(text).digest()
    try:
        if length > len(text):
            raise _Refused("line_too_long", f"the line has {length} bytes, at most {MAX_LINE_BYTES} are allowed")
        request = _object(text)
        custom_id = _custom_id(request, known)
        url = _url(request)
    except _Refused as refused:
        return Line(number, offset, length, digest, custom_id, problem=Problem(refused.code, str(refused)))
    return Line(number, offset, length, digest, custom_id, url)


class _Refused(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _Refused("invalid_json_line", f"the line is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise _Refused("invalid_json_line", f"the line must be a JSON object, got {json_type(value)}")
    return value


def _custom_id(request: dict[str, Any], known: Set[str]) -> str:
    custom_id = request.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise _Refused("invalid_custom_id", f"custom_id must be a string that is not empty, got {json_type(custom_id)}")
    if custom_id in known:
        raise _Refused("duplicate_custom_id", f"an earlier line has the custom_id {custom_id!r:.80}")
    return custom_id


def _url(request: dict[str, Any]) -> str:
    """Checks the rest of the line, too."""
    method, url, body = request.get("method"), request.get("url"), request.get("body")
    if method != "POST":
        raise _Refused("invalid_method", f"method must be POST, got {method!r:.80}")
    if url not in URLS:
        raise _Refused("invalid_url", f"url must be {' or '.join(URLS)}, got {url!r:.80}")
    if not isinstance(body, dict):
        raise _Refused("invalid_request", f"body must be an object, got {json_type(body)}")
    if body.get("stream"):
        raise _Refused("invalid_request", "body.stream: a batch has no streams")
    return str(url)
