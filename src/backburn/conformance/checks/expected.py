"""Expected failures: which checks may fail on a backend, and why. They are strict: if one passes, the run fails."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from backburn.base.errors import ArgumentError, ConfigError
from backburn.base.foreign import printable, quoted
from backburn.base.regular import read_regular
from backburn.conformance.checks.check import parts_of

#: The most bytes of a file of expected failures.
MOST_BYTES = 2**24


def read_expected(path: str | Path) -> dict[str, str]:
    """Expected failures from a file of lines ``ID: reason``, with comments after ``#``.

    An id may be a pattern in which ``*`` stands for anything, such as ``take-*-errors-*`` or ``sum-*``. Raises
    :class:`ConfigError`, with file and line, for a line without a reason, an invalid id, and a repeated id.
    """
    found: dict[str, str] = {}
    try:
        text = read_regular(path, MOST_BYTES).decode("utf-8")
    except UnicodeDecodeError as cause:
        raise ConfigError(f"{path}: not a text file in UTF-8") from cause
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        name, _, reason = (part.strip() for part in content.partition(":"))
        if not reason:
            raise ConfigError(f"{path}, line {number}: expected 'ID: reason', and found {quoted(content)}")
        try:
            check_pattern(name)
        except ArgumentError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from error
        if name in found:
            raise ConfigError(f"{path}, line {number}: {printable(name)} is repeated")
        found[name] = reason
    return found


def with_reasons(expected: object) -> dict[str, str]:
    """Expected failures passed to a function. Raises :class:`ArgumentError` for an invalid id or a missing reason."""
    if expected is not None and not isinstance(expected, Mapping):
        raise ArgumentError(f"expected_failures maps ids to reasons, and this is a {type(expected).__name__}")
    found = dict(expected or {})
    for name, reason in found.items():
        check_pattern(name)
        if not isinstance(reason, str) or not reason.strip():
            raise ArgumentError(f"the expected failure {name} has no reason, but {reason!r}")
    return found


def check_pattern(name: str) -> None:
    """Raise :class:`ArgumentError` for anything but an id or a pattern of ids.

    Whether a pattern matches any check is known only when a backend is checked; a run fails if it matches none.
    """
    if "*" in name and not set(name) & set(" ?[]"):
        return
    try:
        parts_of(name)
    except ValueError as error:
        raise ArgumentError(f"{error}; or a pattern in which * stands for anything, such as add-*") from error


def reason_for(check_id: str, expected: Mapping[str, str]) -> str:
    """The reason why a check is expected to fail, or ``""``.

    >>> reason_for("take-float32-errors-3", {"take-*-errors-*": "clamps indices"})
    'clamps indices'
    """
    exact = expected.get(check_id)
    if exact is not None:
        return exact
    return next(
        (reason for pattern, reason in expected.items() if "*" in pattern and fnmatchcase(check_id, pattern)), ""
    )


def unknown(expected: Collection[str], ids: Collection[str]) -> list[str]:
    """The expected failures that match no check of the backend."""
    known = set(ids)
    return [
        pattern
        for pattern in expected
        if (not any(fnmatchcase(i, pattern) for i in known) if "*" in pattern else pattern not in known)
    ]
