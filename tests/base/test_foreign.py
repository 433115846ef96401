"""Foreign text in messages: no control characters, no unencodable characters, and a limited length."""

from __future__ import annotations

import difflib
import random
import sys

import pytest

from backburn.base.errors import COMPARED, LONGEST, FileFormatError, hint_for
from backburn.base.foreign import MOST, printable, printable_lines, quoted

HOSTILE = [
    "\x1b[2J",
    "\x1b]0;title\x07",
    "a\rb",
    "\x9b31m",
    "\u202egnp.exe",
    "\ud800",
    "\u2028",
    "\x00",
    "\x7f",
    "\ufeff",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_invisible_character_is_left(text: str) -> None:
    """In one line, quoted, in several lines and in an error message."""
    message = str(FileFormatError(f"m.safetensors: no tensor {text}"))
    for shown in (printable(text), quoted(text), printable_lines(text), message):
        assert shown.isprintable()
        assert shown.encode("utf-8")


@pytest.mark.parametrize("text", ["\u3164", "\u115f", "\u2800", "\ufe0f", "\U000e0100", "\u034f", "\u180b", "\ufe00"])
def test_letters_without_ink_are_shown(text: str) -> None:
    """Python calls them printable, but a name with them looks empty, or like another name."""
    for shown in (printable(f"a{text}"), quoted(f"a{text}"), str(FileFormatError(f"no tensor a{text}"))):
        assert shown.isascii()
        assert "\\u" in shown.lower()


def test_visible_text_stays() -> None:
    """Letters of all languages stay, and line breaks in messages of several lines."""
    assert printable("Gewicht größer 重み") == "Gewicht größer 重み"
    assert printable_lines("a\n\tb") == "a\n\tb"
    assert str(FileFormatError("one\ntwo")) == "one\ntwo"
    assert printable("a\nb") == "a\\nb"


@pytest.mark.parametrize("show", [printable, quoted])
def test_long_text_is_truncated_before_it_is_escaped(show: object) -> None:
    """Both ends stay, since they distinguish names."""
    assert callable(show)
    shown = show("ab" + "\x1b" * 10**6 + "yz")
    assert shown.strip("'").startswith("ab")
    assert shown.strip("'").endswith("yz")
    assert len(shown) <= 4 * MOST + 2


def test_every_code_point_is_shown_or_escaped() -> None:
    """All code points of Python."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert printable(every, len(every)).isprintable()
    assert len(printable(every, len(every))) > len(every)


def test_hints_compare_a_bounded_number_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among many names only neighbours of the wrong one are compared, and no overlong ones; the nearest is found."""
    compared: list[str] = []
    original = difflib.get_close_matches

    def counted(name: str, names: list[str], n: int) -> list[str]:
        compared.extend(names)
        return original(name, names, n=n)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    choice = random.Random(0)
    names = ["".join(choice.choices("abcdef", k=12)) for _ in range(20_000)] + ["z" * (LONGEST + 1)]
    assert hint_for(names[77] + "x", names) == f"Did you mean {names[77]!r}?"
    assert 0 < len(compared) <= COMPARED
    compared.clear()
    assert hint_for("z" * LONGEST + "y", names).startswith("Known: ")
    assert not compared


def test_hints_show_no_raw_names() -> None:
    """Neither suggested nor known names are shown unescaped."""
    assert hint_for("weigh\x1bt", ["weigh\x1bu"]) == "Did you mean 'weigh\\x1bu'?"
    assert hint_for("bias", ["weigh\x1bu"]) == "Known: weigh\\x1bu."
