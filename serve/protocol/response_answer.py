"""The answer of /v1/responses: items that come one after the other, each told by its own events."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from llmc.runtime.loop.request import FinishReason
from llmc.serve.protocol.answer import Head, Usage
from llmc.serve.protocol.delta import Delta, ToolCallDelta
from llmc.serve.protocol.errors import ApiError

Body = dict[str, Any]


class ResponseAnswer:
    """Takes the deltas of one answer; `take_events` gives what a stream says of them, `body` the whole."""

    def __init__(self, head: Head, stated: Mapping[str, Any]) -> None:
        self._head = head
        self._stated = stated
        self._items: list[Body] = []
        self._open: Body | None = None  # the item that grows
        self._call_index: int | None = None
        self._events: list[bytes] = []
        self._num_events = 0
        self._num_reasoning = 0

    def begin(self) -> None:
        for name in ("response.created", "response.in_progress"):
            self._event(name, response=self._body("in_progress", None))

    def feed(self, deltas: Sequence[Delta], num_tokens: int) -> None:
        """What so many tokens said. Those that said nothing but reasoning are reasoning's."""
        if deltas and all(delta.reasoning and not delta.content for delta in deltas):
            self._num_reasoning += num_tokens
        for delta in deltas:
            if delta.reasoning:
                self._text("reasoning", "reasoning_text", delta.reasoning)
            if delta.content:
                self._text("message", "output_text", delta.content)
            if delta.tool_call is not None:
                self._call(delta.tool_call)

    def finish(self, reason: FinishReason, usage: Usage) -> Body:
        """The last event, and the whole."""
        self._close()
        complete = reason is FinishReason.STOP
        body = self._body("completed" if complete else "incomplete", usage)
        self._event("response.completed" if complete else "response.incomplete", response=body)
        return body

    def fail(self, error: ApiError) -> None:
        """The last event of a stream that went wrong."""
        body = self._body("failed", None)
        body["error"] = {"code": error.code or "server_error", "message": error.message}
        self._event("response.failed", response=body)

    def take_events(self) -> bytes:
        """Those since the last time."""
        events, self._events = self._events, []
        return b"".join(events)

    def _event(self, kind: str, **fields: Any) -> None:
        body = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        self._events.append(b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n")

    def _text(self, item_type: str, part_type: str, text: str) -> None:
        if self._open is None or self._open["type"] != item_type:
            self._close()
            part: Body = {"type": part_type, "text": ""}
            if item_type == "message":
                part |= {"annotations": [], "logprobs": []}
            extra: Body = {"role": "assistant"} if item_type == "message" else {"summary": []}
            item = self._begin_item(item_type, {**extra, "content": []})
            self._event("response.content_part.added", **self._where(item), content_index=0, part=part)
            item["content"].append(dict(part))
        item = self._open or {}
        item["content"][0]["text"] += text
        also: Body = {"logprobs": []} if item_type == "message" else {}
        self._event(f"response.{part_type}.delta", **self._where(item), content_index=0, delta=text, **also)

    def _call(self, call: ToolCallDelta) -> None:
        if self._open is None or self._open["type"] != "function_call" or self._call_index != call.index:
            self._close()
            fresh = {"call_id": call.id or f"call_{secrets.token_hex(12)}", "name": call.name or "", "arguments": ""}
            self._begin_item("function_call", fresh)
            self._call_index = call.index
        item = self._open or {}
        if call.arguments:
            item["arguments"] += call.arguments
            self._event("response.function_call_arguments.delta", **self._where(item), delta=call.arguments)

    def _begin_item(self, item_type: str, fields: Body) -> Body:
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[item_type]
        item = {"id": f"{prefix}_{secrets.token_hex(16)}", "type": item_type, "status": "in_progress", **fields}
        self._items.append(item)
        self._open = item
        copy = {**item, **({"content": []} if "content" in item else {})}
        self._event("response.output_item.added", output_index=len(self._items) - 1, item=copy)
        return item

    def _close(self) -> None:
        item, self._open = self._open, None
        if item is None:
            return
        item["status"] = "completed"
        where = self._where(item)
        if item["type"] == "function_call":
            self._event(
                "response.function_call_arguments.done", **where, name=item["name"], arguments=item["arguments"]
            )
        else:
            part = item["content"][0]
            also: Body = {"logprobs": []} if item["type"] == "message" else {}
            self._event(f"response.{part['type']}.done", **where, content_index=0, text=part["text"], **also)
            self._event("response.content_part.done", **where, content_index=0, part=part)
        self._event("response.output_item.done", output_index=where["output_index"], item=item)

    def _where(self, item: Body) -> Body:
        return {"item_id": item["id"], "output_index": len(self._items) - 1}

    def _body(self, status: str, usage: Usage | None) -> Body:
        return {
            "id": self._head.id,
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._head.model,
            "output": list(self._items),
            "previous_response_id": None,
            "store": False,
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage, self._num_reasoning),
            **self._stated,
        }


def _usage(usage: Usage, num_reasoning: int) -> Body:
    return {
        "input_tokens": usage.num_prompt,
        "input_tokens_details": {"cached_tokens": usage.num_cached},
        "output_tokens": usage.num_output,
        "output_tokens_details": {"reasoning_tokens": num_reasoning},
        "total_tokens": usage.num_prompt + usage.num_output,
    }
