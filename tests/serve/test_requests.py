"""Requests from JSON: what is read, what is refused, and which field is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from llmc.serve.protocol.chat import read_chat
from llmc.serve.protocol.completions import read_completion
from llmc.serve.protocol.errors import ApiError
from llmc.serve.protocol.fields import Fields
from llmc.serve.protocol.generation import Generation
from llmc.serve.protocol.json_body import MAX_BODY_BYTES, MAX_DEPTH, parse_object
from llmc.serve.protocol.rules import REFUSED, UNREAD
from tests.serve.scripted import ScriptedEngine

USER = {"role": "user", "content": "Hi"}
CHAT = {"messages": [USER]}
FUNCTION = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def refusal(body: Mapping[str, Any], read: Callable[[Mapping[str, Any]], Any] = read_chat) -> ApiError:
    with pytest.raises(ApiError) as caught:
        generation = read(body).generation
        generation.params(ScriptedEngine())
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": ["Hi"]}, "messages"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [USER, {"role": "user", "content": 7}]}, "messages[1].content"),
        ({"messages": [{**USER, "weight": 1}]}, "messages[0].weight"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": True}, "n"),
        ({"n": "1"}, "n"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"n": 1, "best_of": 2, "stream": True}, "best_of"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -1}, "seed"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"stop": ""}, "stop"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"tool_choice": "required", "tools": [FUNCTION]}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "add"}}, "tools": [FUNCTION]}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": True}}]}, "tools[0].function.strict"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"temprature": 1}, "temprature"),
        ({"latency": "fast"}, "latency"),
        ({"service_tier": "scale"}, "service_tier"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"echo": True}, "echo"),
    ],
)
def test_a_chat_that_cannot_be_is_refused_by_its_field(changes: dict[str, Any], param: str) -> None:
    assert refusal({**CHAT, **changes}).param == param


@pytest.mark.parametrize(
    "prompt", [None, "", [], 5, [[]], [1, "a"], ["a", 1], [True], [-1], [2**31], [[1], "a", 3], {}]
)
def test_prompts_of_no_kind_are_refused(prompt: Any) -> None:
    if prompt == "":
        assert read_completion({"prompt": ""}).prompts == [""]  # BOS alone is a prompt; the engine decides
    else:
        assert (refusal({"prompt": prompt}, read_completion).param or "").startswith("prompt")


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", [1]], ["a", [1]]),
    ],
)
def test_prompts_are_texts_or_ids_or_several(prompt: Any, prompts: list[Any]) -> None:
    assert read_completion({"prompt": prompt}).prompts == prompts


def test_nothing_is_asked_for_by_null_or_by_what_happens_anyway() -> None:
    nulls = dict.fromkeys(["temperature", "stop", "n", "seed", "tools", "logit_bias", "max_tokens", *REFUSED, *UNREAD])
    neutral = {name: rule.values[0] for name, rule in REFUSED.items() if rule.values}
    unread = dict.fromkeys(UNREAD, "x")
    for extra in (nulls, neutral, unread):
        assert read_chat({**CHAT, **extra}) == read_chat(CHAT)


def test_every_refused_field_says_why() -> None:
    for name, rule in REFUSED.items():
        fields = Fields({name: {"something": 1}})
        with pytest.raises(ApiError, match=name) as caught:
            fields.finish()
        assert rule.why in caught.value.message
        assert caught.value.code == "unsupported_field"
    assert not set(REFUSED) & set(UNREAD)


def test_one_is_not_true() -> None:
    assert refusal({**CHAT, "use_beam_search": 0}).param == "use_beam_search"
    assert refusal({**CHAT, "length_penalty": True}).param == "length_penalty"


def test_the_fields_reach_the_sampling_parameters() -> None:
    body = {
        **CHAT,
        "temperature": 0.5,
        "top_k": -1,
        "top_p": 0.9,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": 2,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": -100},
        "seed": 7,
        "stop": "END",
        "stop_token_ids": [3],
        "ignore_eos": True,
        "max_completion_tokens": 9,
        "min_tokens": 2,
        "logprobs": True,
        "top_logprobs": 3,
    }
    params = read_chat(body).generation.params(ScriptedEngine())
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 0, 0.9, 0.1)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (1, 2, 1.1)
    assert (dict(params.logit_bias), params.seed, params.stop, params.stop_token_ids) == ({5: -100}, 7, ("END",), (3,))
    assert (params.ignore_eos, params.max_tokens, params.min_tokens, params.logprobs) == (True, 9, 2, 3)


def test_defaults_are_those_of_openai_where_the_model_has_none() -> None:
    engine = ScriptedEngine()
    assert engine.sampling().temperature == 0  # of the model alone
    assert read_chat(CHAT).generation.params(engine).temperature == 1
    assert read_chat({**CHAT, "temperature": 0}).generation.params(engine).temperature == 0
    assert read_completion({"prompt": "x"}).generation.params(engine).max_tokens == 16
    assert read_chat(CHAT).generation.params(engine).max_tokens is None
    assert read_chat(CHAT).generation.params(engine).logprobs is None
    assert read_chat({**CHAT, "logprobs": True}).generation.params(engine).logprobs == 0


def test_urgency() -> None:
    def of(**fields: Any) -> Generation:
        return read_chat({**CHAT, **fields}).generation

    assert of().latency == of(service_tier="auto").latency == of(service_tier="default").latency == "standard"
    assert (of(service_tier="flex").latency, of(service_tier="priority").latency) == ("batch", "interactive")
    assert of(service_tier="flex", latency="interactive").latency == "interactive"
    assert of(priority=5).priority == -5  # as in vLLM, lower is sooner
    assert of(cache_salt="tenant").salt == "tenant"


def test_tools_are_told_unless_they_may_not_be_called() -> None:
    assert read_chat({**CHAT, "tools": [FUNCTION]}).variables["tools"] == [FUNCTION]
    assert "tools" not in read_chat({**CHAT, "tools": [FUNCTION], "tool_choice": "none"}).variables
    assert "tools" not in read_chat({**CHAT, "tools": []}).variables


def test_a_conversation_with_calls_is_read_as_templates_read_it() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    assistant = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": [call]}
    tool = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "2"}]}
    messages = read_chat({"messages": [{"role": "developer", "content": "Be."}, USER, assistant, tool]}).messages
    read = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}, "id": "c1"}
    assert messages == [
        {"role": "system", "content": "Be."},
        USER,
        {"role": "assistant", "tool_calls": [read]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    ]
    broken = {**call, "function": {"name": "add", "arguments": "{"}}
    error = refusal({"messages": [USER, {**assistant, "tool_calls": [broken]}]})
    assert error.param == "messages[1].tool_calls[0].function.arguments"


def test_max_tokens_0_scores_the_echoed_prompt() -> None:
    assert read_completion({"prompt": "x", "echo": True, "max_tokens": 0}).score_only
    assert refusal({"prompt": "x", "max_tokens": 0}, read_completion).param == "max_tokens"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        rb'{"a": "\ud800"}',
        b'{"a": "\xff"}',
        b'{"a": "\x00"}',
        b'{"a": 1} 2',
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(body)
    assert caught.value.status == 400


def test_depth_is_bounded_before_anything_is_parsed() -> None:
    inner = MAX_DEPTH - 1
    nested = b'{"a": ' + b"[" * inner + b"]" * inner + b"}"
    assert parse_object(nested)
    for deep in (b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", b"[" * 10**6, b'{"a":' * 10**5):
        with pytest.raises(ApiError, match="nested"):
            parse_object(deep)
    quoted = b'{"a": "' + b"[{" * 100 + rb"\" [[[[" + b'", "b": [' + b"[]," * 100 + b"[]]}"
    assert parse_object(quoted)
    with pytest.raises(ApiError) as caught:
        parse_object(b" " * (MAX_BODY_BYTES + 1))
    assert caught.value.status == 413


def test_messages_of_errors_are_one_short_line() -> None:
    error = ApiError(400, "a\nb\x00c\u2028\ud800" + "x" * 5000)
    assert error.message.startswith("a b c") and len(error.message) == 1000
    assert set(error.body["error"]) == {"message", "type", "param", "code"}
