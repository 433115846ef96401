"""The number of threads with which backends compute on the host."""

from __future__ import annotations

import operator
from collections.abc import Callable

from backburn.base.errors import ArgumentError

_num_threads: int | None = None
_followers: list[Callable[[int], object]] = []


def set_num_threads(count: int) -> None:
    """Make backends compute with ``count`` threads on the host from now on, including the calling one.

    The setting holds for the whole process, including backends loaded later. The NumPy backend uses the threads for
    large arrays, and its BLAS library for matrix products. For the default see "Threads" in *Getting started*. Work on
    a GPU is not affected. Raises :class:`ArgumentError` unless ``count`` is a positive integer.

        >>> import backburn as bb
        >>> bb.set_num_threads(1)
    """
    global _num_threads
    try:
        number = operator.index(count)
    except TypeError:
        raise ArgumentError(f"set_num_threads: the number of threads is an integer, not {count!r}") from None
    if number < 1:
        raise ArgumentError(f"set_num_threads: at least one thread computes, not {number}")
    _num_threads = number
    for follower in _followers:
        follower(number)


def chosen() -> int | None:
    """The number last given to :func:`set_num_threads`; None if it has not been called."""
    return _num_threads


def follow(apply: Callable[[int], object]) -> None:
    """Call ``apply`` with the number last given to :func:`set_num_threads`, if any, and with every later one.

    A backend calls it if its library has a thread pool.

        >>> counts = []
        >>> follow(counts.append)
        >>> set_num_threads(1)
        >>> counts[-1]
        1
    """
    _followers.append(apply)
    if _num_threads is not None:
        apply(_num_threads)
