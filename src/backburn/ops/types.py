"""The four kinds of primitive, as type parameters of the contract."""

from __future__ import annotations

from typing import Protocol

from typing_extensions import TypeVar


class Primitive(Protocol):
    """A primitive of any backend: an object with a shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        ...


F = TypeVar("F", bound=Primitive)
I = TypeVar("I", bound=Primitive)
B = TypeVar("B", bound=Primitive)
Q = TypeVar("Q", bound=Primitive)
