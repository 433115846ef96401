"""NumPy's ufuncs as operations of the contract.

``out=...`` (the Ellipsis) makes a ufunc return an array where it would return a scalar: 0-d results stay arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


def unary(ufunc: np.ufunc) -> Callable[[Array], Array]:
    """A ufunc of one operand as an operation."""

    def operation(x: Array, /) -> Array:
        return ufunc(x, out=...)

    return operation


def binary(ufunc: np.ufunc) -> Callable[[Array, Array], Array]:
    """A ufunc of two operands, one of which may be a Python scalar, as an operation.

    Beside a Python scalar a ufunc keeps the array's dtype if it is one of NumPy's own. For one of another package, such
    as bfloat16, the scalar must be an array first.
    """

    def operation(x: Array, y: Array, /) -> Array:
        if x.__class__ is not y.__class__:
            if x.__class__ is np.ndarray:
                if x.dtype.isbuiltin != 1:
                    y = np.asarray(y, x.dtype)
            elif y.dtype.isbuiltin != 1:
                x = np.asarray(x, y.dtype)
        return ufunc(x, y, out=...)

    return operation
