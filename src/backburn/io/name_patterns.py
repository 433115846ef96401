r"""PEFT's patterns for the names of layers, matched in bounded time.

PEFT writes regular expressions, nearly always plain names, that match a whole name or its end after a dot. Python's
``re`` backtracks, and takes exponential time for ``(\w+)+!``. Here plain names are looked up, and other patterns run
as nondeterministic automata (Thompson (1968), *Regular Expression Search Algorithm*), in time proportional to the
product of the lengths of pattern and name.

Characters, ``.``, sets, ``\d \w \s``, groups, ``|``, ``* + ? {m,n}``, ``^`` and ``$`` are supported; lookarounds and
backreferences are not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from backburn.base.errors import FileFormatError
from backburn.base.foreign import quoted

#: The most steps of all automata together, the most states of one, and the deepest nesting of groups.
MOST_STEPS, MOST_PLACES, _MOST_DEPTH = 5_000_000, 5_000, 50
_SPECIAL = frozenset("*+?{}[]()|^$\\")
_COUNTS = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}")
_Test: TypeAlias = Callable[[str], bool]
_CLASSES: dict[str, _Test] = {
    "d": str.isdecimal, "w": lambda c: c.isalnum() or c == "_", "s": str.isspace,
    "D": lambda c: not c.isdecimal(), "W": lambda c: not (c.isalnum() or c == "_"), "S": lambda c: not c.isspace(),
}  # fmt: skip
#: A state of an automaton: a test of the next character, offsets of next states, ``^`` or ``$``, or empty for the end.
_Place: TypeAlias = "_Test | tuple[int, ...] | str"
_Code: TypeAlias = "list[_Place]"


class NamePatterns:
    r"""Values by patterns for the ends of names; the first match counts; ``where`` is for errors.

    Raises :class:`FileFormatError` for an unsupported pattern.

        >>> found = NamePatterns("x.json", {"q_proj": 8, r"layers\.[0-3]\..*": 4})
        >>> found.value("layers.7.q_proj", 2), found.value("layers.1.mlp", 2), found.value("norm", 2)
        (8, 4, 2)
    """

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self._where = where
        self._left = MOST_STEPS
        self._plain: dict[str, tuple[int, Any]] = {}
        self._machines: list[tuple[int, _Code, Any]] = []
        for number, (pattern, value) in enumerate(values.items()):
            plain = _plain(pattern)
            if plain is not None:
                self._plain.setdefault(plain, (number, value))
            else:
                self._machines.append((number, _Parser(where, pattern).code(), value))

    def value(self, name: str, default: Any) -> Any:
        """The value of the first pattern that matches the end of a name. Raises if that takes too many steps."""
        ends = [name, *(name[place + 1 :] for place, sign in enumerate(name) if sign == ".")]
        first, value = min((self._plain[end] for end in ends if end in self._plain), default=(None, default))
        for number, code, other in self._machines:
            if first is not None and number > first:
                break
            self._left -= len(code) * (len(name) + 1)
            if self._left < 0:
                raise FileFormatError(f"{self._where}: its patterns take too many steps: write names of layers")
            if _matches(code, name):
                return other
        return value


def _plain(pattern: str) -> str | None:
    """The name that a pattern matches literally, escaped or not; None for other patterns."""
    name = re.sub(r"\\([^0-9A-Za-z])", lambda found: "\0" if found[1] in _SPECIAL else found[1], pattern)
    return None if _SPECIAL & set(name) or "\0" in name else name


def _matches(code: _Code, name: str) -> bool:
    """Whether the automaton, started at the beginning and after each dot, accepts the name."""
    places: set[int] = set()
    for i in range(len(name) + 1):
        starts = {0} if i == 0 or name[i - 1] == "." else set()
        places = _reached(code, places | starts, i == 0, i == len(name))
        if i < len(name):
            here = name[i]
            places = {place + 1 for place in places if callable(test := code[place]) and test(here)}
    return len(code) - 1 in places


def _reached(code: _Code, places: Iterable[int], is_first: bool, is_last: bool) -> set[int]:
    """All states that can be reached without consuming a character."""
    found: set[int] = set()
    waiting = [*places]
    while waiting:
        place = waiting.pop()
        if place in found:
            continue
        found.add(place)
        what = code[place]
        if isinstance(what, tuple):
            waiting += [place + step for step in what]
        elif (what == "^" and is_first) or (what == "$" and is_last):
            waiting.append(place + 1)
    return found


class _Parser:
    """Compiles a pattern to an automaton; its jumps are relative, so that parts can be repeated."""

    def __init__(self, where: str, pattern: str) -> None:
        self._where, self._pattern, self._at = where, pattern, 0

    def code(self) -> _Code:
        """The automaton; its last state accepts."""
        found = self._choice(0)
        if self._at < len(self._pattern):
            self._refuse()
        return [*found, ""]

    def _refuse(self) -> FileFormatError:
        raise FileFormatError(
            f"{self._where}: the pattern {quoted(self._pattern)} is not read: write names of layers, or a simple one"
        )

    def _next(self) -> str:
        self._at += 1
        return self._pattern[self._at - 1 : self._at] or str(self._refuse())

    def _is_at(self, signs: str) -> bool:
        return self._at < len(self._pattern) and self._pattern[self._at] in signs

    def _checked(self, code: _Code) -> _Code:
        if len(code) > MOST_PLACES:
            self._refuse()
        return code

    def _choice(self, depth: int) -> _Code:
        if depth > _MOST_DEPTH:
            self._refuse()
        ways = [self._sequence(depth)]
        while self._is_at("|"):
            self._at += 1
            ways.append(self._sequence(depth))
        found = ways.pop()
        for way in reversed(ways):
            found = self._checked([(1, len(way) + 2), *way, (len(found) + 1,), *found])
        return found

    def _sequence(self, depth: int) -> _Code:
        found: _Code = []
        while self._at < len(self._pattern) and not self._is_at("|)"):
            found += self._repeated(self._atom(depth))
            self._checked(found)
        return found

    def _repeated(self, part: _Code) -> _Code:
        """A part, repeated as the quantifier after it says."""
        if not self._is_at("*+?{"):
            return part
        sign, least, most = self._pattern[self._at], 0, 1 << 30
        counts = _COUNTS.match(self._pattern, self._at)
        if sign != "{":
            self._at += 1
            least, most = {"*": (0, most), "+": (1, most), "?": (0, 1)}[sign]
        elif counts is None:
            self._refuse()
        else:
            self._at = counts.end()
            least = int(counts[1])
            most = least if counts[2] is None else int(counts[3]) if counts[3] else most
        if self._is_at("?"):  # lazy, which does not change whether a name matches
            self._at += 1
        if self._is_at("*+{") or most < least:
            self._refuse()
        size = len(part)
        if (least + (most - least if most < 1 << 30 else 1)) * (size + 2) > MOST_PLACES:
            self._refuse()
        if most == 1 << 30:
            return part * least + [(1, size + 2), *part, (-size - 1,)]
        tail: _Code = []
        for _ in range(most - least):
            tail = [(1, size + len(tail) + 1), *part, *tail]
        return part * least + tail

    def _atom(self, depth: int) -> _Code:
        sign = self._next()
        if sign == "(":
            if self._is_at("?"):
                self._at += 1
                if self._next() != ":":
                    self._refuse()
            found = self._choice(depth + 1)
            if self._next() != ")":
                self._refuse()
            return found
        if sign == "[":
            return [self._set()]
        if sign in "^$":
            return [sign]
        if sign in "*+?{":
            self._refuse()
        return [(lambda c: c != "\n") if sign == "." else self._escaped() if sign == "\\" else sign.__eq__]

    def _escaped(self) -> _Test:
        sign = self._next()
        if sign in _CLASSES:
            return _CLASSES[sign]
        if sign.isalnum():  # a word boundary, a backreference or a character code
            self._refuse()
        return sign.__eq__

    def _set(self) -> _Test:
        is_negated = self._is_at("^")
        self._at += is_negated
        tests: list[_Test] = []
        while not self._is_at("]") or not tests:
            first = self._next()
            if first == "\\":
                tests.append(self._escaped())
            elif (
                self._pattern[self._at : self._at + 1] == "-"
                and self._pattern[self._at + 1 : self._at + 2] not in "]\\"
            ):
                self._at += 1
                last = self._next()
                tests.append(lambda c, low=first, high=last: low <= c <= high)  # type: ignore[misc]
            else:
                tests.append(first.__eq__)
        self._at += 1
        return lambda c: any(test(c) for test in tests) is not is_negated
