r"""Text that others wrote, such as names in files, made safe for messages, tables and reports.

A terminal obeys escape characters, an override of the direction of writing shows a name as another one, and half a
surrogate pair cannot be written at all. Text from files and folders passes :func:`printable` or :func:`quoted` before
it is shown. Messages of our errors pass :func:`printable_lines` too, in case a caller forgets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: The most characters of a name that are shown.
MOST = 200
#: The most letters of a message.
MOST_LETTERS = 16_000
#: The deepest nesting of tables and lists in a file of settings.
DEPTH = 50
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: Invisible letters and marks: with them, names look alike or empty; ``isprintable`` accepts them.
_NO_INK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def printable(text: object, most: int = MOST) -> str:
    r"""Foreign text in one line: invisible characters are escaped, and the middle of a long text is left out.

    >>> print(printable("a\x1b[2Jb\nc\ud800"), printable("x" * 10**6, 20))
    a\x1b[2Jb\nc\ud800 xxxxxxxx ... xxxxxxx
    """
    words = _cut(text, most)
    return words if _is_visible(words) else "".join(map(_visible, words))


def quoted(name: object, most: int = MOST) -> str:
    r"""A foreign name in quotation marks, as ``repr`` writes it; the middle of a long one is left out.

    >>> print(quoted("a\x1b[2J"), quoted("x" * 10**6, 20))
    'a\x1b[2J' 'xxxxxxxx ... xxxxxxx'
    """
    return _NO_INK.sub(lambda found: _visible(found[0]), repr(_cut(name, most)))


def listed(names: Sequence[object], most: int = 20) -> str:
    r"""The first few of foreign names, and the number of the others.

    >>> print(listed(["a", "b\x1b", "c"], 2))
    a, b\x1b and 1 more
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(map(printable, names[:most]))}{more}"


def printable_lines(text: str) -> str:
    r"""Text of several lines, with all invisible characters but newlines and tabs escaped.

    The middle of a text of more than ``MOST_LETTERS`` letters is left out.

    >>> print(printable_lines("one\x07\ntwo"))
    one\x07
    two
    """
    text = _cut(text, MOST_LETTERS)
    if _is_visible(text):
        return text
    return "".join(character if character in "\n\t" else _visible(character) for character in text)


def inert(text: str) -> str:
    r"""A model's text, safe for a terminal: control characters except newlines and tabs are escaped.

    Direction marks and joiners are kept, since many languages need them.

    >>> print(inert("one\x1b[2J\ntwo"))
    one\x1b[2J
    two
    """
    return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


def is_deep(tree: object, most: int = DEPTH) -> bool:
    """Whether dicts and lists are nested more than ``most`` deep, where recursion may overflow the stack.

    >>> is_deep([[1], {"a": [2]}]), is_deep([[1], {"a": [2]}], 2)
    (False, True)
    """
    level = [tree] if isinstance(tree, (dict, list)) else []
    for _ in range(most):
        inside = (x for node in level for x in (node.values() if isinstance(node, dict) else node))
        level = [x for x in inside if isinstance(x, (dict, list))]
    return bool(level)


def _cut(text: object, most: int) -> str:
    words = text if isinstance(text, str) else str(text)
    half = (most - 5) // 2
    return words if len(words) <= most else f"{words[: most - 5 - half]} ... {words[len(words) - half :]}"


def _is_visible(text: str) -> bool:
    return text.isprintable() and (text.isascii() or _NO_INK.search(text) is None)


def _visible(character: str) -> str:
    if _is_visible(character):
        return character
    return ascii(character)[1:-1]
