"""Lines of the output: the same bytes whenever and however often a line is answered.

What a server draws or measures anew for every request comes from the line and the engine here: ids are their hash, the
seed is the line's, `created` is 0, and how much of a prompt was cached is left out.
"""

import hashlib
from typing import Any

import orjson

from llmc.serve.batch.lines import Line


class Identity:
    """Of one line, for one engine; equal lines of a file differ by their number."""

    def __init__(self, engine_digest: str, line: Line) -> None:
        place = f"{engine_digest} {line.number} ".encode()
        self._key = hashlib.sha256(place + line.digest)

    @property
    def request(self) -> str:
        return f"batch_req_{self._key.hexdigest()[:32]}"

    def made(self, what: str) -> str:
        """32 hexadecimal digits."""
        own = self._key.copy()
        own.update(what.encode())
        return own.hexdigest()[:32]


def request_body(line: Line, body: dict[str, Any]) -> dict[str, Any]:
    """As it is asked: with a seed, and as one of many that nobody waits for."""
    seed = int.from_bytes(hashlib.sha256(b"seed " + line.digest).digest()[:8], "little")
    asked = {**body, "seed": seed if body.get("seed") is None else body["seed"]}
    if asked.get("latency") is None and asked.get("service_tier") is None:
        asked["latency"] = "batch"
    return asked


def problem_line(line: Line, identity: Identity) -> bytes:
    """Of a line that is no request."""
    assert line.problem is not None
    error = {"code": line.problem.code, "message": line.problem.message}
    return orjson.dumps({"id": identity.request, "custom_id": line.custom_id, "response": None, "error": error})


def answer_line(line: Line, identity: Identity, status: int, body: bytes, request_id: str) -> bytes:
    """`request_id` is the server's, which its body may name."""
    own = identity.made("request")
    answer = orjson.loads(body.replace(request_id.encode(), own.encode()))
    if status == 200:
        _settle(answer, identity)
    response = {"status_code": status, "request_id": own, "body": answer}
    return orjson.dumps({"id": identity.request, "custom_id": line.custom_id, "response": response, "error": None})


def is_failed(output: bytes) -> bool:
    """Whether a line of the output tells of an error."""
    line = orjson.loads(output)
    return line["error"] is not None or line["response"]["status_code"] != 200


def _settle(body: dict[str, Any], identity: Identity) -> None:
    body["id"] = f"{str(body['id']).partition('-')[0]}-{identity.made('body')}"
    body["created"] = 0
    body["usage"].pop("prompt_tokens_details", None)
    for choice in body["choices"]:
        for at, call in enumerate(choice.get("message", {}).get("tool_calls", ())):
            call["id"] = identity.made(f"call {choice['index']} {at}")[: len(call["id"])]
