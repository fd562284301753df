"""What published chat templates are made of, rendered as transformers' apply_chat_template renders it."""

from __future__ import annotations

import enum
from typing import Any

import jinja2
import numpy as np
import pytest
from sample_tokenizers import KINDS

from llmc.runtime.artifact.manifest import SpecialTokens
from llmc.runtime.errors import ChatTemplateError
from llmc.runtime.text.chat import ChatTemplate
from llmc.runtime.text.tokenizer import Tokenizer

hf = pytest.importorskip("transformers.utils.chat_template_utils")

NAMED = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>", "image_token": "<image>"}
TOKENIZER = Tokenizer(KINDS["byte_level"](), SpecialTokens(None, (), None, False), NAMED)
Messages = list[dict[str, Any]]
HI: Messages = [{"role": "user", "content": "Hi there"}]
TWO = [*HI, {"role": "assistant", "content": "yes"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_x",
            "description": "Gets <x> & 'é'",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": ["string", "null"]}},
                "required": ["a"],
            },
        },
    }
]
CALL = {"id": "c1", "type": "function", "function": {"name": "get_x", "arguments": {"a": 1, "b": None, "ok": True}}}
CALLS = [*HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "42"}]
EACH = "{% for m in messages %}"


class Level(enum.IntEnum):
    HIGH = 3


CASES: dict[str, tuple[str, Messages, dict[str, Any]]] = {
    "tojson": (
        "{% for t in tools %}{{ t | tojson(indent=4) }}{{ t.function | tojson(separators=(',', ':')) }}"
        "{{ t.function.parameters | tojson(sort_keys=true) }}{{ t | tojson(ensure_ascii=true) }}{% endfor %}",
        HI,
        {"tools": TOOLS},
    ),
    "null content": (
        EACH + "{{ m.content is defined }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
        "{% for k, v in c.function.arguments | items %}{{ k ~ '=' ~ v }}{% endfor %}"
        "{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v | string }}{% endfor %}{% endfor %}{% endfor %}",
        CALLS,
        {},
    ),
    "messages as JSON": ("{{ messages | tojson }}", CALLS, {}),
    **{
        f"reasoning under {name}": (
            EACH + "<{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.reasoning }}>{{ m.content }}{% endfor %}",
            [*HI, {"role": "assistant", "content": "yes", name: "hmm"}],
            {},
        )
        for name in ("reasoning_content", "thinking", "reasoning")
    },
    "reasoning under two names": (
        EACH + "<{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.reasoning }}>{% endfor %}",
        [{"role": "assistant", "content": "yes", "reasoning": "a", "thinking": "b"}],
        {},
    ),
    "a set inside a generation block": (
        EACH + "{% generation %}{% set z = 1 %}{{ m.content }}{{ loop.index }}{% endgeneration %}{{ z is defined }}"
        "{% endfor %}",
        TWO,
        {},
    ),
    "a namespace set inside a generation block": (
        "{% set ns = namespace(n=0) %}" + EACH + "{% generation %}{% set ns.n = ns.n + 1 %}{% endgeneration %}"
        "{% endfor %}{{ ns.n }}",
        TWO,
        {},
    ),
    "white space around a generation block": (
        EACH + "\n  {%- generation -%}\n  {{ m.content }}\n  {%- endgeneration %}\n|{% endfor %}",
        TWO,
        {},
    ),
    "break and continue": (
        EACH + "{% if loop.index > 3 %}{% break %}{% endif %}{% if m.role == 'assistant' %}{% continue %}{% endif %}"
        "{{ m.content }}{% endfor %}",
        TWO * 3,
        {},
    ),
    "powers": ("{{ 2 ** 3 }} {{ 2.5 ** -1 }} {{ (-2) ** 3 }} {{ 10 ** 20 }}", HI, {}),
    "arithmetic": ("{{ 7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 1 + true }} {{ 'a' * 3 }} {{ [1] * 2 }}", HI, {}),
    "macros and call blocks": (
        "{% macro w(a, b='x') %}[{{ a }}{{ b }}{{ kwargs.c }}{{ varargs }}{{ caller() if caller }}]{% endmacro %}"
        "{{ w(1, c=2) }}{{ w(1, 2, 3) }}{% call w(1) %}in{% endcall %}",
        HI,
        {},
    ),
    "namespaces": (
        "{% set ns = namespace(xs=[], self=1, last=none) %}" + EACH + "{% set ns.xs = ns.xs + [m.role] %}"
        "{% set ns.last = m %}{% endfor %}{{ ns.xs | join(',') }}{{ ns.last.content }}{{ ns.self }}{{ ns.nope }}",
        TWO,
        {},
    ),
    "a namespace from a mapping": ("{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}", HI, {}),
    "an underscored name in a namespace": ("{% set ns = namespace(_a=1) %}{{ ns._a }}", HI, {}),
    "dict": (
        "{% set d = dict(a=1, b=[2]) %}{{ d.a }}{{ dict(d, c=3) | tojson }}{{ d | dictsort }}{{ d.get('z', 'none') }}"
        "{{ dict.fromkeys(['a', 'b'], 1) | tojson }}{{ dict([('k', 1)]) }}",
        HI,
        {},
    ),
    "dict has nothing else": ("{{ dict.__name__ }}{{ dict.mro }}", HI, {}),
    "slices and loop variables": (
        "{% for m in messages[::-1] %}{{ loop.index0 }}{{ m.role[:1] | upper }}"
        "{{ loop.previtem.role if loop.previtem is defined }}"
        "{{ loop.nextitem is defined }}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}{{ loop.revindex }}"
        "{% else %}none{% endfor %}",
        TWO * 2,
        {},
    ),
    "recursive loops": (
        "{% for k, v in tools[0].function.parameters.items() recursive %}{{ k }}:{% if v is mapping %}"
        "({{ loop(v.items()) }}){% elif v is string %}{{ v }}{% else %}{{ v | join('|') }}{% endif %};{% endfor %}",
        HI,
        {"tools": TOOLS},
    ),
    "filters": (
        "{{ messages | map(attribute='role') | unique | list }}{{ messages | selectattr('role', 'equalto', 'user')"
        " | list | length }}{{ messages | rejectattr('role', 'in', ['user']) | first }}{{ [3, 1] | sort | last }}"
        "{{ [1, 2] | sum }}{{ 'a b' | title }}{{ '  x ' | trim }}{{ 'x' | indent(2, true) }}"
        "{{ 'ab' | replace('a', 'c') }}{{ none | default('d', true) }}{{ 'x' | capitalize }}{{ [1, [2]] | string }}"
        "{{ 'a' | list }}{{ 1.5 | int }}",
        TWO,
        {},
    ),
    "string methods": (
        "{{ messages[0].content.title() }}{{ ' '.isspace() }}{{ 'a\\nb'.splitlines() }}{{ 'abc'.find('c') }}"
        "{{ 'x{}y'.format(2) }}{{ '%s-%d' % ('a', 3) }}{{ 'a,b'.split(',')[-1] }}{{ 'aXb'.partition('X') }}"
        "{{ '\\n x'.lstrip('\\n') }}{{ 'abc'.startswith('ab') }}{{ 'é'.encode('utf-8') | length }}{{ 'q'.ljust(3) }}|",
        HI,
        {},
    ),
    "thinking that is split off": (
        EACH + "{% set c = m.content %}{% if '</think>' in c %}{% set r = c.split('</think>')[0].rstrip('\\n')"
        ".split('<think>')[-1].lstrip('\\n') %}{% set c = c.split('</think>')[-1].lstrip('\\n') %}R({{ r }}){% endif %}"
        "{{ c }}{% endfor %}",
        [*HI, {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nyes"}],
        {},
    ),
    "white space control": (
        EACH
        + "\n    {% if true %}\n    x {{ m.content }}\n    {% endif %}\n\n{%+ if true %}y{% endif %}\n{% endfor %}\n",
        TWO,
        {},
    ),
    "what is undefined": (
        "{{ x | default(true) }}{{ x is defined }}{{ '</think>' in messages[0].nope }}{{ messages[0].nope }}"
        "{{ tools is none }}{{ documents is none }}{{ date_string is defined }}{{ 'a' if false }}|{{ none }}{{ true }}",
        HI,
        {},
    ),
    "an undefined value in a sum": ("{{ 'x' + messages[0].nope }}", HI, {}),
    "an undefined value as JSON": ("{{ nope | tojson }}", HI, {}),
    "variables": (
        "{{ enable_thinking is false }}{{ n + 1 }}{{ xs }}",
        HI,
        {"enable_thinking": False, "n": 2, "xs": (1,)},
    ),
    "numbers of other kinds": (
        "{{ n }}{{ f }}{{ b is true }}{{ e }}{{ [n] | tojson }}",
        HI,
        {"n": np.int64(2), "f": np.float32(0.5), "b": np.bool_(True), "e": Level.HIGH},
    ),
    "keys that are no text": ("{{ table[1] }}{{ table | tojson }}", HI, {"table": {1: "a", "é": "<&>", None: 2}}),
    "tuples": ("{{ pair }}{{ pair | tojson }}", HI, {"pair": ("a", 1)}),
    "named tokens": (
        "{{ bos_token }}{{ eos_token }}{{ image_token }}{{ sep_token }}{{ pad_token is defined }}",
        HI,
        {},
    ),
    "content in parts": (
        EACH + "{% if m.content is string %}{{ m.content }}{% elif m.content is iterable %}{% for p in m.content %}"
        "{% if p.type == 'image' %}<img>{% elif 'text' in p %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}"
        "{% endfor %}",
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what"}]}, *HI],
        {},
    ),
    "set blocks, filter blocks, with": (
        "{% set a %}  {{ messages[0].content }}  {% endset %}{{ a | trim | length }}{% filter upper %}{{ a }}"
        "{% endfilter %}{% with q = 3 %}{{ q }}{% endwith %}{% set a, b = 'x,y'.split(',') %}{{ b }}{{ a }}"
        "{{ q is defined }}",
        HI,
        {},
    ),
    "raw": ("{% raw %}{{ x }}{% endraw %}{# gone #}", HI, {}),
    "joiner and cycler": (
        "{% set j = joiner('|') %}{{ j() }}a{{ j() }}b{% set c = cycler(1, 2) %}{{ c.next() }}",
        HI,
        {},
    ),
    "a refusal": ("{{ raise_exception('System first: ' ~ messages[0].role) }}", HI, {}),
    "a change of a list": ("{% set xs = [] %}{% set _ = xs.append(1) %}{{ xs }}", HI, {}),
    "documents": (
        "{% for d in documents %}{{ d.title }}{{ d.text }}{% endfor %}",
        HI,
        {"documents": [{"title": "t", "text": "x"}]},
    ),
}


def rendered_by_transformers(source: str, messages: Messages, variables: dict[str, Any]) -> str | None:
    """None where it refuses."""
    try:
        (text,), _ = hf.render_jinja_template(
            [hf._normalize_chat_messages(messages)],
            chat_template=source,
            add_generation_prompt=True,
            **{**NAMED, **variables},
        )
    except (jinja2.TemplateError, TypeError, ValueError):
        return None
    return str(text)


def rendered_here(source: str, messages: Messages, variables: dict[str, Any]) -> str | None:
    try:
        return ChatTemplate(source, TOKENIZER).render(messages, **variables)
    except ChatTemplateError:
        return None


@pytest.mark.parametrize("name", CASES)
def test_each_construct_renders_as_in_transformers(name: str) -> None:
    assert rendered_here(*CASES[name]) == rendered_by_transformers(*CASES[name])


def test_the_oracle_renders_most_of_them() -> None:
    refused = {name for name, case in CASES.items() if rendered_by_transformers(*case) is None}
    assert refused == {
        "an underscored name in a namespace",
        "an undefined value in a sum",
        "an undefined value as JSON",
        "a refusal",
        "a change of a list",
    }


def test_today_is_today() -> None:
    source = "{{ strftime_now('%d %B %Y') }}"
    assert rendered_here(source, HI, {}) == rendered_by_transformers(source, HI, {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ 2 ** 1000000000 }}",
        "{{ 2 ** (2 ** 30) }}",
        "{% set ns = namespace(n=10) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{{ [1] | tojson(indent='          ' * 100000) }}",
        "{{ 'x' | batch(1000000000, 'y') | list }}",
    ],
)
def test_what_grows_without_bounds_is_refused(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source, TOKENIZER).render(HI)
