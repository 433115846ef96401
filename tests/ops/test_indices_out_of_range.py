"""An index outside its axis raises, in the NumPy backend's functions and in the default bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backburn.backend.registry import load_backend
from backburn.base.dtypes import int64
from backburn.ops.table import OPERATIONS

BASE = load_backend("numpy")
X = np.arange(6.0).reshape(2, 3)

#: For each operation: a function from an index to operands, and attributes.
CALLS: dict[str, tuple[Callable[[Any], tuple[Any, ...]], dict[str, Any]]] = {
    "take_along_axis": (lambda i: (X, np.array([[0], [i]])), {"axis": 1}),
    "take_along_axis_backward": (lambda i: (np.ones((2, 2)), np.array([[0, 1], [i, 0]])), {"shape": (2, 3), "axis": 1}),
    "scatter": (lambda i: (X, np.array([[0], [i]]), np.ones((2, 1))), {"axis": 1}),
    "scatter_reduce": (lambda i: (X, np.array([[0], [i]]), np.ones((2, 1))), {"axis": 1, "mode": "max"}),
    "take": (lambda i: (X, np.array([0, i])), {"axis": 1}),
    "take_backward": (lambda i: (np.ones((2, 2)), np.array([0, i])), {"length": 3, "axis": 1}),
    "index_add": (lambda i: (X, np.array([0, i]), np.ones((2, 2))), {"axis": 1}),
    "index_copy": (lambda i: (X, np.array([0, i]), np.ones((2, 2))), {"axis": 1}),
    "gather_nd": (lambda i: (X, np.array([[0, 1], [0, i]])), {}),
    "scatter_nd": (lambda i: (X, np.array([[0, 1], [0, i]]), np.ones(2)), {}),
    "one_hot": (lambda i: (np.array([0, i]),), {"depth": 3, "dtype": int64}),
}


def ways(name: str) -> list[Callable[..., Any]]:
    """Return the backend's function, and the default body if there is one."""
    found = [getattr(BASE, name)]
    if not OPERATIONS[name].required:
        found.append(lambda *operands, **options: OPERATIONS[name].body(BASE, *operands, **options))
    return found


@pytest.mark.parametrize("name", CALLS)
def test_an_index_out_of_range_raises(name: str) -> None:
    operands, attributes = CALLS[name]
    for call in ways(name):
        call(*operands(2), **attributes)
        call(*operands(-3), **attributes)
        for index in (3, -4, 99):
            with pytest.raises(IndexError):
                call(*operands(index), **attributes)


def test_adding_with_an_index_out_of_range_raises() -> None:
    for index in (3, -4, 99):
        with pytest.raises(IndexError):
            BASE.scatter(X, np.array([[0, 1], [index, 0]]), np.ones((2, 2)), 1, "add")
        with pytest.raises(IndexError):
            BASE.scatter_nd(X, np.array([[0, 1], [0, index]]), np.ones(2), "add")


@pytest.mark.parametrize("name", ["label_cross_entropy", "label_cross_entropy_backward", "nll_loss", "cross_entropy"])
def test_labels_out_of_range_raise(name: str) -> None:
    grad = (np.ones(2),) if name.endswith("backward") else ()
    for call in ways(name):
        call(*grad, X, np.array([0, 2]), axis=1)
        for label in (-1, 3, 99):
            with pytest.raises(IndexError):
                call(*grad, X, np.array([0, label]), axis=1)
