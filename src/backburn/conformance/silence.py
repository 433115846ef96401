"""Hearing the warnings of operations, of which the contract allows none."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from backburn.base.quiet import PACKAGES, ignore_warnings


@contextmanager
def unwarned(what: str) -> Iterator[None]:
    """Raise AssertionError after the block if anything in it warned.

    A backend may tell Python not to warn where its own modules are concerned, as NumPy's does: filters that ignore a
    module or a message stay, where they were set before the first call, and so does what a package has said by
    :func:`backburn.base.quiet.ignore_warnings`, whatever a test runner has done to filters since. Those for whole
    categories, which a user or a test runner sets, do not count. A warning of a resource that nobody closed is left
    out: it comes whenever memory is collected, from anywhere.
    """
    with warnings.catch_warnings(record=True) as heard:
        particular = [f for f in _filters() if f[0] == "ignore" and (f[1] is not None or f[3] is not None)]
        warnings.resetwarnings()
        warnings.simplefilter("always")
        for action, message, category, module, line in reversed(particular):
            warnings.filterwarnings(action, _pattern(message), category, _pattern(module), line)
        for package in tuple(PACKAGES):
            ignore_warnings(package)
        yield
    told = [w for w in heard if not issubclass(w.category, ResourceWarning)]
    if told:
        first = told[0]
        words = " ".join(str(first.message).split())
        raise AssertionError(
            f"{what} warned ({first.category.__name__}: {words}, {first.filename}:{first.lineno}), and no operation may"
        )


def _filters() -> list[Any]:
    """The filters in force: since Python 3.14 a context may have its own, which no public name tells."""
    current: Callable[[], list[Any]] | None = getattr(warnings, "_get_filters", None)
    return list(warnings.filters if current is None else current())


def _pattern(part: object) -> str:
    """What a filter asks of a message or a module, as it was given."""
    return "" if part is None else str(getattr(part, "pattern", part))
