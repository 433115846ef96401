"""Tensors that a transform gave to its function, once it has ended: of no use any more, and they say so."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from backburn.base.errors import GraphError


class Spent:
    """Stands for the primitive of such a tensor."""

    def __getattr__(self, name: str) -> NoReturn:
        raise GraphError(
            "this tensor stood for an argument of a function while a transform ran it, and the transform has ended. "
            "Return what is needed from the function (has_aux=True lets grad do so), or keep x.numpy()"
        )


def check_useful(x: Any) -> None:
    """Refuse such a tensor where its primitive is passed on and not asked for anything."""
    if x._primitive.__class__ is Spent:
        x._primitive.shape  # noqa: B018 - raises


def spend(tensors: Iterable[Any]) -> None:
    """Let these tensors, which the function may have kept, be of no use any more."""
    for x in tensors:
        x._primitive = Spent()
