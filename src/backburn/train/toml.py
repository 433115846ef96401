"""Reading TOML so that an error can name the line of a wrong key."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from backburn.base.errors import ConfigError, FileFormatError
from backburn.base.foreign import DEPTH, is_deep, printable
from backburn.base.regular import read_regular

#: The most bytes of a file.
MOST_BYTES = 2**24


def read_toml(path: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    """The tables of a TOML file, and its text. Raises :class:`ConfigError`, with file and line, for invalid TOML."""
    path = Path(path)
    try:
        text = read_regular(path, MOST_BYTES).decode("utf-8").removeprefix("\ufeff")  # the mark of some editors
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: no TOML file: it is not UTF-8 ({error.reason} at byte {error.start})") from None
    except (FileFormatError, ValueError) as error:
        raise ConfigError(f"{path}: the configuration cannot be read: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: the configuration cannot be read: {error.strerror}") from error
    try:
        tables = parsed(text)
    except tomllib.TOMLDecodeError as error:
        problem = str(error)
        place = re.search(r" \(at line (\d+), column \d+\)$", problem)
        line = f", line {place[1] if place else len(text.splitlines())}"
        problem = printable(problem[: place.start()] if place else problem)
        raise ConfigError(f"{path}{line}: no TOML: {problem}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: no TOML: {error}") from None
    check_tables(tables, str(path))
    return tables, text


def parsed(text: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises ValueError for a text that is invalid, or nested too deeply."""
    if _DOTTED.search(_NO_KEY.sub("s", text)):  # on which tomllib takes quadratic time and memory
        raise ValueError(f"a key in it has more than {DEPTH} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists or tables in it are nested too deeply") from None


#: Strings and comments, in which nothing is a key, closed or not; and a key of many parts.
_NO_KEY = re.compile(
    r'"""(?:[^"\\]|\\[\s\S]|"{1,2}(?!"))*(?:"{3,5})?|"(?:[^"\\\n]|\\.)*"?'
    r"|\'\'\'(?:[^\']|\'{1,2}(?!\'))*(?:\'{3,5})?|\'[^\'\n]*\'?|#[^\n]*"
)
_DOTTED = re.compile(r"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){" + str(DEPTH) + "}")


def check_tables(tables: object, name: str) -> None:
    """Raise :class:`ConfigError` for tables that are nested too deeply, and integers of more than 64 bits."""
    if is_deep(tables):
        raise ConfigError(f"{name}: tables and lists in it are nested more than {DEPTH} deep")
    waiting: list[Any] = [tables]
    while waiting:
        node = waiting.pop()
        if isinstance(node, int) and not -(2**63) <= node < 2**63:
            raise ConfigError(f"{name}: an integer in it has more than 64 bits")
        waiting += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()


def line_of(text: str, keys: Sequence[str | int]) -> int | None:
    r"""The line, counted from 1, of the statement that sets a key of a valid TOML text; None where there is none.

    ``keys`` lead from the whole document to the value; if the last of them do not exist, the line is that of the last
    one that does.

        >>> text = "a = 1\n\n[b]\n# c is\nc = [\n  2,\n]\n"
        >>> line_of(text, ["a"]), line_of(text, ["b"]), line_of(text, ["b", "c", 0]), line_of(text, ["d"])
        (1, 3, 5, None)
    """
    lines = _lines(text)
    return next((lines[key] for i in range(len(keys), 0, -1) if (key := tuple(keys[:i])) in lines), None)


@lru_cache(maxsize=4)
def _lines(text: str) -> dict[tuple[str | int, ...], int]:
    """The line of the first statement that sets each key, in one pass over a valid text.

    A header sets its table and those around it; of several with one name, the next in a list. A statement sets its key.
    """
    found: dict[tuple[str | int, ...], int] = {}
    table: tuple[str | int, ...] = ()
    #: The number of tables in each list of them.
    counts: dict[tuple[str | int, ...], int] = {}
    position, line, counted = 0, 1, 0
    while (match := _STATEMENT.match(text, position)) is not None:
        line += text.count("\n", counted, match.start(1))
        counted = match.start(1)
        is_header, is_list = text.startswith("[", counted), text.startswith("[[", counted)
        start = counted + is_header + is_list
        end = _end_of_key(text, start, "]" if is_header else "=")
        names = _parts(text[start:end])
        if is_header:
            table = ()
            for i, name in enumerate(names):
                table = (*table, name)
                found.setdefault(table, line)
                if is_list and i == len(names) - 1:
                    counts[table] = counts.get(table, 0) + 1
                if table in counts:
                    table = (*table, counts[table] - 1)
                    found.setdefault(table, line)
            position = _end_of_line(text, end)
        else:
            for i in range(len(names)):
                found.setdefault((*table, *names[: i + 1]), line)
            position = _end_of_value(text, end + 1)
    return found


#: The first sign of a statement, after blanks and comments, each of which is matched in one way only.
_STATEMENT = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+([^ \t\r\n#])")
#: Strings, comments, brackets, ends of lines: what determines where a value ends.
_SIGN = re.compile(r'"""|\'\'\'|"|\'|#[^\n]*|[\[{]|[\]}]|\n')
#: The rest of a string of each kind.
_STRINGS = {
    '"': re.compile(r'(?:[^"\\]|\\.)*"'), '"""': re.compile(r'(?s)(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}'),
    "'": re.compile(r"[^']*'"), "\'\'\'": re.compile(r"(?s)(?:[^']|'{1,2}(?!'))*'{3,5}"),
}  # fmt: skip
_PART = re.compile(r'\s*("(?:[^"\\]|\\.)*"|\'[^\']*\'|[^\s."\']+)\s*\.?')


def _end_of_key(text: str, start: int, sign: str) -> int:
    """The position of a sign outside of quotation marks."""
    position = start
    while position < len(text) and text[position] != sign:
        kind = text[position]
        position = _after_string(text, position, kind) if kind in "\"'" else position + 1
    return position


def _after_string(text: str, position: int, kind: str) -> int:
    match = _STRINGS[kind].match(text, position + len(kind))
    return match.end() if match else len(text)


def _parts(key: str) -> tuple[str, ...]:
    """The names of a dotted key."""
    return tuple(_name(part) for part in _PART.findall(key))


def _name(part: str) -> str:
    return next(iter(tomllib.loads(f"{part} = 0"))) if part.startswith('"') else part.strip("'")


def _end_of_line(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _end_of_value(text: str, position: int) -> int:
    """Where a value ends: at the end of a line that is in no string and in no brackets."""
    depth = 0
    while (match := _SIGN.search(text, position)) is not None:
        sign, position = match[0], match.end()
        if sign in _STRINGS:
            position = _after_string(text, match.start(), sign)
        elif sign in "[{":
            depth += 1
        elif sign in "]}":
            depth -= 1
        elif sign == "\n" and not depth:
            return match.start()
    return len(text)
