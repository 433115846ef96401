"""The four kinds of primitive, as type parameters of the contract."""

from __future__ import annotations

from typing_extensions import TypeVar

F = TypeVar("F")
I = TypeVar("I")  # noqa: E741 - the kinds are F, I, B and Q throughout
B = TypeVar("B")
Q = TypeVar("Q")
