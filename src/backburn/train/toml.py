"""Reading TOML so that an error can name the line of the key that is wrong."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backburn.base.errors import ConfigError


def read_toml(path: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    """The tables of a TOML file, and its text. Raises :class:`ConfigError`, with file and line, for invalid TOML."""
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8").removeprefix("\ufeff")  # the byte-order mark of some editors
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: no TOML file: it is not UTF-8 ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: the configuration cannot be read: {error.strerror}") from error
    try:
        return tomllib.loads(text), text
    except tomllib.TOMLDecodeError as error:
        problem = str(error)
        place = re.search(r" \(at line (\d+), column \d+\)$", problem)
        line = place[1] if place else len(text.splitlines())
        problem = problem[: place.start()] if place else problem
        raise ConfigError(f"{path}, line {line}: no TOML: {problem}") from None


def line_of(text: str, keys: Sequence[str | int]) -> int | None:
    r"""The line, counted from 1, of the statement that sets a key of a valid TOML text; None where there is none.

    ``keys`` lead from the whole document to the value; where the last of them do not exist, the place where they
    should is meant.

        >>> text = "a = 1\n\n[b]\n# c is\nc = [\n  2,\n]\n"
        >>> line_of(text, ["a"]), line_of(text, ["b"]), line_of(text, ["b", "c", 0]), line_of(text, ["d"])
        (1, 3, 5, None)
    """
    lines = text.splitlines(keepends=True)
    known = _existing(_parsed(text) or {}, keys)
    if not known:
        return None
    # The text up to the end of a statement sets its key, the text before it does not. A prefix of the text parses only
    # if it ends between statements: a statement's first line follows the last such end.
    start = 0
    for end in range(1, len(lines) + 1):
        tables = _parsed("".join(lines[:end]))
        if tables is None:
            continue
        if len(_existing(tables, known)) == len(known):
            return start + 1
        start = end
    return None


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _existing(tables: Any, keys: Sequence[str | int]) -> list[str | int]:
    """The longest beginning of ``keys`` that leads to a value."""
    found: list[str | int] = []
    for key in keys:
        try:
            tables = tables[key]
        except (KeyError, IndexError, TypeError):
            break
        found.append(key)
    return found
