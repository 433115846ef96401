"""Functions of this package that are methods of tensors, too: marked by :func:`method` where they are defined.

Type checkers read ``methods.pyi``, which ``python tools/write_methods.py`` writes from the marks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: The methods, by name.
METHODS: dict[str, Callable[..., Any]] = {}


class TensorMethods:
    """Base class of tensors, to which type checkers attach the methods."""

    __slots__ = ()


def method(function: Any = None, /, *, name: str = "") -> Any:
    """Make the decorated function, whose first argument is a tensor, a method as well, under ``name`` if given."""
    if function is None:
        return lambda function: method(function, name=name)
    METHODS[name or function.__name__] = function
    return function
