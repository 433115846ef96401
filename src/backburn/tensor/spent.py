"""Tensors that a transform passed to its function, invalidated when it ends: using them raises an error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from backburn.base.errors import GraphError


class Spent:
    """Replaces the primitive of such a tensor."""

    def __getattr__(self, name: str) -> NoReturn:
        raise GraphError(
            "this tensor stood for an argument of a function while a transform ran it, and the transform has ended. "
            "Return what is needed from the function (has_aux=True lets grad do so), or keep x.numpy()"
        )


def check_useful(x: Any) -> None:
    """Raise for such a tensor before its primitive is passed on unused."""
    if x._primitive.__class__ is Spent:
        x._primitive.shape  # noqa: B018 - raises


def spend(tensors: Iterable[Any]) -> None:
    """Invalidate these tensors, which the function may have kept."""
    for x in tensors:
        x._primitive = Spent()
