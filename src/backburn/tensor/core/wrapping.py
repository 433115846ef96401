"""Primitives as tensors: the class of each kind, registered here so that functions need not import the classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from backburn.backend.contract import AnyBackend
from backburn.base.dtypes import DType

#: The class of each kind of tensor, by the kind's name; filled where the classes are defined.
CLASSES: dict[str, type[Any]] = {}
#: The classes of all kinds, for tests of membership.
TENSORS: set[type[Any]] = set()

#: The classes of all kinds but the complex one, which many operations reject.
REAL_TENSORS: set[type[Any]] = set()


def tensor_of(primitive: Any, backend: AnyBackend, dtype: DType) -> Any:
    """A primitive of ``dtype`` as a tensor of its kind."""
    return CLASSES[dtype.kind](primitive, backend, dtype)


def wrap(primitive: Any, backend: AnyBackend) -> Any:
    """A primitive as a tensor of its kind."""
    dtype = backend.dtype(primitive)
    return CLASSES[dtype.kind](primitive, backend, dtype)


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a tensor of any kind."""
    return value.__class__ in TENSORS


def flat(operands: Iterable[Any]) -> list[Any]:
    """The tensors among operands, including those in lists."""
    return [t for x in operands for t in (x if x.__class__ is list else (x,)) if is_tensor(t)]
