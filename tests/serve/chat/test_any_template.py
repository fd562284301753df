"""Formats that nobody has yet: templates of random markers, in the three shapes, are learned and read back."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.serve.chat.styles import arguments, model_of, read

WORDS = st.text(alphabet="abcdefgh_", min_size=2, max_size=6)
SPACES = st.sampled_from(["", "\n", " ", "\n\n"])
# A marker's two ends: tags, brackets, special tokens.
PAIRS = st.one_of(
    WORDS.map(lambda word: (f"<{word}>", f"</{word}>")),
    WORDS.map(lambda word: (f"[{word}]", f"[/{word}]")),
    WORDS.map(lambda word: (f"<|{word}_begin|>", f"<|{word}_end|>")),
)
HEAD = (
    "{%- if tools %}{{ tools | tojson }}{% endif %}{%- for m in messages %}"
    "{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}"
)
TAIL = "{{- '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
CALLS = [{"name": "weather", "arguments": {"city": 'a "b" }] <c>', "days": 7}}, {"name": "time_of", "arguments": {}}]


@st.composite
def templates(draw: st.DrawFn) -> str:
    """The source of one."""
    pairs = draw(st.lists(PAIRS, min_size=5, max_size=5, unique_by=lambda pair: pair[0].strip("<>[|]")[:2]))
    (first, last), (open, close), (key, key_end), (value, value_end), (between, _) = pairs
    gap = {name: draw(SPACES) for name in ("section", "call", "inner", "parts")}
    section = draw(st.booleans())
    shape = draw(st.sampled_from(("json", "list", "named", "tagged")))
    bodies = {
        "json": '\'{"name": "\' + c.function.name + \'", "arguments": \' + (c.function.arguments | tojson) + "}"',
        "named": f"c.function.name + {between!r} + {gap['parts']!r} + (c.function.arguments | tojson)",
    }
    if shape == "list":
        several = "(m.tool_calls | map(attribute='function') | list | tojson)"
        inside = f"{{{{- {open!r} + {gap['inner']!r} + {several} + {close!r} }}}}"
        return f"{HEAD}{{%- if m.tool_calls %}}{inside}{{% endif %}}{TAIL}"
    if shape == "tagged":
        lead = gap["inner"]
        pieces = (
            f"{{%- for k, v in c.function.arguments | items %}}{{{{- {gap['parts']!r} + {key!r} + k + {key_end!r}"
            f" + {value!r} + {lead!r} + (v if v is string else v | tojson) + {lead!r} + {value_end!r} }}}}"
            "{%- endfor %}"
        )
        body = f"{{{{- {open!r} + c.function.name + {gap['call'] or chr(10)!r} }}}}{pieces}{{{{- {close!r} }}}}"
    else:
        body = f"{{{{- {open!r} + {gap['inner']!r} + {bodies[shape]} + {gap['inner']!r} + {close!r} }}}}"
    begin = f"{{%- if loop.first %}}{{{{ {first + gap['section']!r} }}}}{{% endif %}}" if section else ""
    end = f"{{%- if loop.last %}}{{{{ {last!r} }}}}{{% endif %}}" if section else ""
    return f"{HEAD}{{%- for c in m.tool_calls or [] %}}{begin}{body}{end}{{%- endfor %}}{TAIL}"


@settings(max_examples=25, deadline=None)
@given(source=templates())
def test_a_format_is_learned_from_its_template_alone(source: str) -> None:
    of = model_of(source)
    assert of.style.calls is not None
    calls = [{"type": "function", "function": call} for call in CALLS]
    question = {"role": "user", "content": "?"}
    prompt = of.template.render([question], tools=calls)
    answer = {"role": "assistant", "content": "Wait.", "tool_calls": calls}
    whole = of.template.render([question, answer], add_generation_prompt=False, tools=calls)
    message = read(of, whole.removeprefix(prompt).removesuffix("<|im_end|>\n"), tools=calls)
    assert [{"name": name, "arguments": given} for name, given in arguments(message)] == CALLS
    assert message.content == "Wait." and json.dumps(of.style.describe())
