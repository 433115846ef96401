"""Detecting warnings of operations; the contract allows none."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from backburn.backend.adapters import PACKAGES, ignore_warnings


@contextmanager
def assert_no_warnings(what: str) -> Iterator[None]:
    """Raise AssertionError after the block if anything in it warned.

    A backend may tell Python to ignore warnings from its own modules, as NumPy's does. So filters for a module or a
    message that were set before the first call are kept, and so are the requests of packages by
    :func:`backburn.backend.adapters.ignore_warnings`, whatever a test runner has since done to the filters. Filters for
    whole categories, which users and test runners set, are dropped. ResourceWarnings are ignored, since garbage
    collection may cause them anywhere.
    """
    with warnings.catch_warnings(record=True) as caught:
        particular = tuple(f for f in _filters() if f[0] == "ignore" and (f[1] is not None or f[3] is not None))
        warnings.resetwarnings()
        _filters()[:] = _kept(particular, tuple(PACKAGES))
        yield
    warned = [w for w in caught if not issubclass(w.category, ResourceWarning)]
    if warned:
        first = warned[0]
        words = " ".join(str(first.message).split())
        raise AssertionError(
            f"{what} warned ({first.category.__name__}: {words}, {first.filename}:{first.lineno}), and no operation may"
        )


@lru_cache(maxsize=16)
def _kept(particular: tuple[Any, ...], packages: tuple[str, ...]) -> list[Any]:
    """The filters of a call, which record everything except what these filters and packages ignore."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("always")
        for action, message, category, module, line in reversed(particular):
            warnings.filterwarnings(action, _pattern(message), category, _pattern(module), line)
        for package in packages:
            ignore_warnings(package)
        return list(_filters())


def _filters() -> list[Any]:
    """The active filters; since Python 3.14 a context may have its own, for which there is no public name."""
    current: Callable[[], list[Any]] | None = getattr(warnings, "_get_filters", None)
    known: Any = warnings.filters  # a list, though typed as a sequence
    return known if current is None else current()


def _pattern(part: object) -> str:
    """The pattern of a filter for a message or a module, as the filter was set."""
    return "" if part is None else str(getattr(part, "pattern", part))
