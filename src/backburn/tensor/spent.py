"""Tensors that were passed on for a time, to a transform's function or a captured step: using one later is an error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from backburn.base.errors import GraphError


class Spent:
    """Replaces the primitive of such a tensor, which prints as ``words``."""

    def __init__(self, words: str, message: str) -> None:
        self.words = words
        self._message = message

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # asked by tools that look at every object
            raise AttributeError(name)
        raise GraphError(self._message)


ARGUMENT = Spent(
    "a tensor of a transform that has ended",
    "this tensor stood for an argument of a function while a transform ran it, and the transform has ended. "
    "Return what is needed from the function (has_aux=True lets grad do so), or keep x.numpy()",
)
STATE = Spent(
    "a tensor of a state that a captured step has used up",
    "the tensor was part of a state that a captured step has used up: use the state that the step returned",
)


def check_useful(x: Any) -> None:
    """Raise for such a tensor before its primitive is passed on unused."""
    if x._primitive.__class__ is Spent:
        x._primitive.shape  # noqa: B018 - raises


def spend(tensors: Iterable[Any], by: Spent) -> None:
    """Invalidate these tensors, which others may have kept."""
    for x in tensors:
        x._primitive = by
