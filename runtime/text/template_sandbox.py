"""A jinja2 environment for chat templates: transformers' dialect in an immutable sandbox, with caps.

A template is a program from the model's maker. It sees plain data only, changes nothing, and is stopped if it
runs too long, writes too much, or builds a huge value.
"""

import ctypes
import functools
import json
import re
import threading
from collections.abc import Callable, Sized
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_CHARS = 4 << 20
MAX_BITS = 1 << 16
_MAX_INDENT = 256
MAX_SECONDS = 5.0


class TemplateRefused(jinja2.TemplateError):
    """`raise_exception(message)` of a template, or a cap that it hit."""


# Thrown into the rendering thread: no `except Exception` catches it, and a thread that it ends does not report it (it
# would report a subclass).
_TimeUp = SystemExit


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it is its own content.

    A block with a scope of its own, as in transformers: what is set inside is gone after it.
    """

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Callable[[], str]) -> str:
        return caller()


class _CappedCode(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        # `a ~ b` compiles to a plain join that the sandbox never sees: doubling in a loop would eat all
        # memory.
        self.write("environment.concat_capped((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Environment of one template. Values are capped at MAX_CHARS characters."""

    code_generator_class = _CappedCode
    intercepted_binops = frozenset(("+", "*", "%", "**"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = _tojson
        for name, position in (("batch", 0), ("center", 0), ("indent", 0), ("format", 0), ("replace", 1), ("join", 1)):
            self.filters[name] = _guarded_filter(name, self.filters[name], position)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["namespace"] = _Namespace
        self.globals["dict"] = _Dict()

    def concat_capped(self, parts: tuple[Any, ...]) -> str:
        return str(_capped("".join(map(str, parts))))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            _check_power(left, right)
        if operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(times, int) and isinstance(value, Sized) and len(value) * times > MAX_CHARS:
                    raise TemplateRefused(f"a value exceeds {MAX_CHARS} characters")
        if operator == "%" and isinstance(left, str):
            _check_growth("format", left, ())
        return _capped(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def guarded(*args: Any, **kwargs: Any) -> str:
            _check_growth("format", value.__self__, ())
            return str(_capped(wrapped(*args, **kwargs)))

        return guarded

    # Names that no template gives to an argument of its own.
    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            _check_growth(__obj.__name__, owner, (*args, *kwargs.values()))
        return _capped(super().call(__context, __obj, *args, **kwargs))


def render_capped(template: jinja2.Template, variables: dict[str, Any], max_seconds: float) -> str:
    """Render in a thread that is stopped after `max_seconds`.

    Raises jinja2.TemplateError and whatever code raises.
    """
    outcome: list[str | BaseException] = []

    def work() -> None:
        try:
            outcome.append(_join_capped(template, variables))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work, name="llmc-chat-template", daemon=True)
    thread.start()
    thread.join(max_seconds)
    while thread.is_alive():
        # Repeated, because an exception that lands inside a template's own `except` would be lost.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_TimeUp))
        thread.join(0.05)
    # Empty if the time was up while the outcome was about to be noted.
    result = outcome[0] if outcome else _TimeUp()
    if isinstance(result, _TimeUp):
        raise TemplateRefused(f"rendering took more than {max_seconds:g} s")
    if isinstance(result, BaseException):
        raise result
    return result


def _join_capped(template: jinja2.Template, variables: dict[str, Any]) -> str:
    pieces: list[str] = []
    size = 0
    for piece in template.generate(variables):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_CHARS:
            raise TemplateRefused(f"the output exceeds {MAX_CHARS} characters")
    return "".join(pieces)


def _capped(value: Any) -> Any:
    if isinstance(value, str | list | tuple) and len(value) > MAX_CHARS:
        raise TemplateRefused(f"a value exceeds {MAX_CHARS} characters")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise TemplateRefused(f"a number exceeds {MAX_BITS} bits")
    return value


def _check_power(base: Any, exponent: Any) -> None:
    """Refuse a power that would be huge before it is computed, which nothing can stop."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_BITS:
        raise TemplateRefused(f"a power exceeds {MAX_BITS} bits")


def _check_growth(method: str, text: str, args: tuple[Any, ...]) -> None:
    """Refuse a string method whose result would be huge, before it allocates."""
    size = 0
    if method.startswith("format"):
        # Widths are digits in the format, or taken from an argument.
        size = MAX_CHARS + 1 if re.search(r"[0-9]{5}|\*|\{[^}]*\{", text) else 0
    elif method == "replace" and len(args) >= 2:
        size = text.count(str(args[0])) * len(str(args[1]))
    elif method == "join" and args and isinstance(args[0], Sized):
        size = len(text) * len(args[0])
    else:
        size = max((arg for arg in args if isinstance(arg, int)), default=0)
    if size > MAX_CHARS:
        raise TemplateRefused(f"{method} would exceed {MAX_CHARS} characters")


def _guarded_filter(name: str, original: Callable[..., Any], position: int) -> Callable[..., Any]:
    """`original` with `_check_growth` in front.

    Its text is argument `position` (a context may come before it).
    """

    @functools.wraps(original)  # keeps jinja2's mark of filters that want a context
    def guarded(*args: Any, **kwargs: Any) -> Any:
        text, rest = args[position], (*args[position + 1 :], *kwargs.values())
        if name == "join":
            separator = str(rest[0]) if rest else ""
            text = list(text)
            args = (*args[:position], text, *args[position + 1 :])
            _check_growth(name, separator, (text,))
        else:
            _check_growth(name, str(text), rest)
        return _capped(original(*args, **kwargs))

    return guarded


class _Namespace(Namespace):
    """`namespace()` without underscored attributes, which lead to Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as in jinja2, so that `namespace(self=...)` works
        own, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            _Namespace._check(name)
        Namespace.__init__(own, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _Namespace._check(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check(name: object) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise TemplateRefused(f"a namespace cannot hold {name!r}")


class _Dict:
    """`dict`, of which templates see these two functions and not the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _raise_exception(message: str) -> None:
    raise TemplateRefused(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    if (len(indent) if isinstance(indent, Sized) else indent or 0) > _MAX_INDENT:
        raise TemplateRefused(f"tojson would indent by more than {_MAX_INDENT} characters")
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return str(_capped(text))
