"""Public names of classes: the path under which users import, print and pickle a class."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

C = TypeVar("C", bound=type)


def published(path: str) -> Callable[[C], C]:
    """Give a class, and the classes in its body, the public path ``path``: its module, a dot, and its name."""
    module, _, name = path.rpartition(".")

    def publish(cls: C) -> C:
        inner = [
            value for value in vars(cls).values() if isinstance(value, type) and value.__module__ == cls.__module__
        ]
        for member in inner:
            member.__module__ = module
        cls.__module__, cls.__name__, cls.__qualname__ = module, name, name
        return cls

    return publish
