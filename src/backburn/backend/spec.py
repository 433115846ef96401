"""Parsing backend expressions, without looking up names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from backburn.base.dtypes import DTYPES
from backburn.base.errors import SpecError, hint_for
from backburn.base.foreign import DEPTH, printable, quoted

#: The most letters of an expression.
MOST_LETTERS = 2000

OptionValue = bool | int | float | str

_TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<number>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|(?P<sign>\S))")


@dataclass(frozen=True)
class Expression:
    """``name``, ``name:device`` or ``name:device(key=value)``, at ``start`` of the whole ``text``."""

    text: str
    start: int
    name: str
    device: int | None = None
    options: dict[str, OptionValue] = field(default_factory=dict)

    def parts(self) -> Iterator[Expression]:
        """The expression and those in it, from the outside in."""
        yield self

    def names(self) -> Iterator[str]:
        """The names in the expression, from the outside in."""
        return (part.name for part in self.parts())

    def error(self, problem: str) -> SpecError:
        """The error that says what is wrong with the expression."""
        return unreadable(self.text, problem)


@dataclass(frozen=True, kw_only=True)
class Decorated(Expression):
    """``name(inner)`` or ``name(inner, key=value)``."""

    inner: Expression

    def parts(self) -> Iterator[Expression]:
        """The expression and those in it, from the outside in."""
        yield self
        yield from self.inner.parts()


def unreadable(text: str, problem: str) -> SpecError:
    """The error for a text that is not an expression."""
    return SpecError(f"cannot read the backend expression {quoted(text)}: {problem}. Examples: numpy, autodiff(numpy)")


#: Advice for names of devices and dtypes, which other libraries accept in place of a backend.
FOREIGN_NAMES = {name: f"That is a dtype: astype({name!r}) casts." for name in DTYPES} | {
    "cpu": "A backend is a device here: 'autodiff(numpy)' computes on the CPU.",
    "cuda": "A backend is a device here: 'autodiff(cupy:0)' computes on the first CUDA device.",
    "gpu": "A backend is a device here: 'autodiff(cupy:0)' computes on the first CUDA device.",
}


def misspelt(expression: Expression, known: Iterable[str]) -> SpecError:
    """The error for an unknown name, which suggests the corrected text if known names are similar."""
    name, text = expression.name, expression.text
    known = sorted(known)
    advice = FOREIGN_NAMES.get(name.lower())
    if advice is None:
        right = _corrected(parse(text), known)
        advice = f"Did you mean {quoted(right)}?" if right else hint_for(name, known)
    inside = f", in {quoted(text)}" if text != name else ""
    return SpecError(f"no backend is called {quoted(name)}{inside}. {advice}")


def _corrected(expression: Expression, known: list[str]) -> str:
    """The text with every unknown name replaced by a similar one; empty if one has none.

    A class, such as ``NumpyBackend``, is similar to the name of its backend.
    """
    text = expression.text
    for part in reversed(list(expression.parts())):
        if part.name not in known:
            near = difflib.get_close_matches(part.name.lower().removesuffix("backend"), known, n=1)
            if not near:
                return ""
            text = text[: part.start] + near[0] + text[part.start + len(part.name) :]
    return text


def parse(text: object) -> Expression:
    """Parse an expression. Raises :class:`SpecError`, which says what was expected.

    >>> parse("autodiff(cupy:1(float_dtype=bfloat16))").inner
    Expression(text=..., start=9, name='cupy', device=1, options={'float_dtype': 'bfloat16'})
    """
    if not isinstance(text, str):
        what = f"{text!r:.200}, which is a backend already" if hasattr(text, "spec") else f"{text!r:.200}"
        raise SpecError(f"a backend expression is a string such as 'autodiff(numpy)', not {what}")
    if len(text) > MOST_LETTERS:
        raise unreadable(text, f"it has more than {MOST_LETTERS:,} letters")
    parser = _Parser(text)
    expression = parser.expression()
    if parser.peek():
        raise unreadable(text, f"nothing may follow, and {quoted(parser.peek())} does")
    return expression


#: The advice for a class's name after a colon, which ``backburn conformance`` accepts and an expression does not.
_CLASS_ADVICE = "; name a class of your own with register_backend or register_decorator, or in a package's entry points"


class _Parser:
    """A recursive-descent reader."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [m for m in _TOKEN.finditer(text) if m.lastgroup]
        self.position = self.depth = 0

    def peek(self, ahead: int = 0) -> str:
        """The token ``ahead`` of the next one, or ``""`` at the end."""
        position = self.position + ahead
        return self.tokens[position][self.tokens[position].lastgroup or 0] if position < len(self.tokens) else ""

    def take(self, kind: str, expected: str, hint: str = "") -> str:
        """The next token, which must be of a kind (or, as a sign, the one expected); ``hint`` is for others."""
        token = self.peek()
        fits = bool(token) and self.tokens[self.position].lastgroup == kind and (kind != "sign" or token == expected)
        if not fits:
            what = repr(expected) if kind == "sign" else expected
            found = f"{quoted(token)}{hint}" if token else "the end"
            raise unreadable(self.text, f"expected {what} and found {found}")
        self.position += 1
        return token

    def expression(self) -> Expression:
        name = self.take("name", "a name")
        start = self.tokens[self.position - 1].start("name")
        device = None
        if self.peek() == ":":
            self.take("sign", ":")
            number = self.take("number", "the number of a device", _CLASS_ADVICE)
            if not number.isdigit():
                raise unreadable(self.text, f"a device is a number from 0 on, not {printable(number)}")
            device = self.whole(number)
        if self.peek() != "(":
            return Expression(self.text, start, name, device)
        self.take("sign", "(")
        if self.peek() == ")" or self.peek(1) == "=":
            return Expression(self.text, start, name, device, self.options())
        self.depth += 1
        if self.depth > DEPTH:
            raise unreadable(self.text, f"more than {DEPTH} nested decorators")
        inner = self.expression()
        if device is not None:
            raise unreadable(self.text, f"the device belongs to what {name} wraps: write {name}({inner.name}:{device})")
        if self.peek() == ",":
            self.take("sign", ",")
            return Decorated(self.text, start, name, None, self.options(), inner=inner)
        self.take("sign", ")")
        return Decorated(self.text, start, name, inner=inner)

    def options(self) -> dict[str, OptionValue]:
        """``key=value, ...)``; values are numbers, true, false or names."""
        options: dict[str, OptionValue] = {}
        while self.peek() != ")":
            key = self.take("name", "the name of an option")
            if key in options:
                raise unreadable(self.text, f"the option {quoted(key)} is given twice")
            self.take("sign", "=")
            options[key] = self.value()
            if self.peek() != ")":
                self.take("sign", ",")
        self.take("sign", ")")
        return options

    def value(self) -> OptionValue:
        word = self.peek()
        if not word or self.tokens[self.position].lastgroup == "sign":
            raise unreadable(self.text, f"expected a value and found {quoted(word) if word else 'the end'}")
        self.position += 1
        if self.tokens[self.position - 1].lastgroup == "name":
            return {"true": True, "false": False}.get(word.lower(), word)
        return self.whole(word) if word.lstrip("-").isdigit() else float(word)

    def whole(self, word: str) -> int:
        """An integer, of at most 64 bits."""
        if len(word) > 20 or not -(2**63) <= int(word) < 2**63:
            raise unreadable(self.text, f"{printable(word, 40)} has more than 64 bits")
        return int(word)
