"""Tensors that are no longer valid: arguments of a finished transform, and state donated to a captured step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from backburn.base.errors import GraphError


class Invalidated:
    """Replaces the primitive of an invalid tensor, whose ``repr`` is ``words``; using it raises :class:`GraphError`."""

    def __init__(self, words: str, message: str) -> None:
        self.words = words
        self._message = message

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # for tools that inspect every object
            raise AttributeError(name)
        raise GraphError(self._message)


ARGUMENT = Invalidated(
    "a tensor of a transform that has ended",
    "this tensor stood for an argument of a function while a transform ran it, and the transform has ended. "
    "Return what is needed from the function (has_aux=True lets grad do so), or keep x.numpy()",
)
STATE = Invalidated(
    "a tensor of a state that a captured step has used up",
    "the tensor was part of a state that a captured step has used up: use the state that the step returned",
)


def check_valid(x: Any) -> None:
    """Raise :class:`GraphError` for an invalid tensor, before its primitive is passed on unused."""
    if x._primitive.__class__ is Invalidated:
        x._primitive.shape  # noqa: B018 - raises


def invalidate(tensors: Iterable[Any], by: Invalidated) -> None:
    """Invalidate tensors, to which there may be other references; ``by`` says why."""
    for x in tensors:
        x._primitive = by
