"""API keys: who may ask."""

import hashlib
import hmac
import os
from collections.abc import Iterable
from pathlib import Path

from llmc.serve.protocol.errors import ApiError

KEY_VARIABLE = "LLMC_API_KEY"


class ApiKeys:
    """Any of these keys will do; without keys everybody may ask."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, authorization: str | None) -> None:
        """Raises ApiError (401). Every key is compared, in constant time each."""
        if not self._digests:
            return
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip())
        same = [hmac.compare_digest(given, digest) for digest in self._digests]
        if scheme.lower() != "bearer" or not any(same):
            what = "an API key is needed: Authorization: Bearer KEY" if authorization is None else "no such API key"
            raise ApiError(401, what, code="invalid_api_key")


def read_keys(given: Iterable[str], file: Path | None) -> list[str]:
    """Keys of the command line, of a file (one on a line, # begins a comment), of LLMC_API_KEY (with commas).

    Raises OSError; ValueError for a key or a file that says nothing, which would leave the server open.
    """
    given = list(given)
    if not all(key.strip() for key in given):
        raise ValueError("--api-key: is empty; leave it out for a server without keys")
    keys = [*given, *os.environ.get(KEY_VARIABLE, "").split(",")]
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: is no text in UTF-8, so it holds no API keys") from error
        from_file = [line for line in lines if line and not line.startswith("#")]
        if not from_file:
            raise ValueError(f"{file}: holds no API key")
        keys += from_file
    return [key.strip() for key in keys if key.strip()]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
