"""The number of threads with which backends compute on the host."""

from __future__ import annotations

import operator
from collections.abc import Callable

from backburn.base.errors import ArgumentError

_num_threads: int | None = None
_followers: list[Callable[[int], object]] = []


def set_num_threads(count: int) -> None:
    """Let backends compute with ``count`` threads on the host from now on, the calling one among them.

    It holds for the whole process, for backends that are loaded later too. The NumPy backend takes them for large
    arrays, and its BLAS library for matrix products. Without a call, the environment and the processors decide: see
    "Threads" in *Getting started*. Work on a GPU is not concerned. Raises :class:`ArgumentError` unless it is an
    integer from 1 on.

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
    """Call ``apply`` with every number that :func:`set_num_threads` is given, and with the present one if there is one.

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
