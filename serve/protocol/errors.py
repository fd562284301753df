"""What goes wrong, as OpenAI's clients expect to hear of it: `{"error": {message, type, param, code}}` and a status."""

import math
import re
from collections.abc import Mapping
from typing import Any

from llmc.runtime.errors import (
    ChatTemplateError,
    EngineGone,
    InvalidParameter,
    PromptTooLong,
    QueueFull,
    RequestError,
    RuntimeFailure,
)

_MAX_MESSAGE = 1000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_WORD = re.compile(r"[a-z_]+")
_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class ApiError(Exception):
    """A request that is answered with an error; `param` is the field that is to blame."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _CONTROL.sub(" ", message)[:_MAX_MESSAGE]
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def type(self) -> str:
        return _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Retry-After is in whole seconds; part of one is a whole one."""
        if self.retry_after is None:
            return []
        return [(b"retry-after", str(max(1, math.ceil(self.retry_after))).encode())]


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The client's mistake."""
    return ApiError(400, message, param, code)


def from_failure(error: RuntimeFailure, names: Mapping[str, str] | None = None) -> ApiError:
    """What the runtime refused. Its messages name the parameter first; `names` are those that clients know it by."""
    if isinstance(error, PromptTooLong):
        return bad(str(error), "prompt", "context_length_exceeded")
    if isinstance(error, ChatTemplateError):
        return bad(str(error), "messages", "chat_template_error")
    if isinstance(error, InvalidParameter):
        known = next((names[word] for word in _WORD.findall(str(error)) if word in names), None) if names else None
        return bad(str(error), known, "invalid_value")
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), None, "queue_full", error.retry_after)
    if isinstance(error, EngineGone):
        return ApiError(503, str(error), None, "engine_gone", 1.0)
    if isinstance(error, RequestError):
        return bad(str(error))
    return ApiError(500, str(error))
