"""NumPy: special functions, by the contract's bodies, evaluated in cache blocks.

A block and its temporaries stay in the processor's cache; polynomials are evaluated in place; a branch that no element
of a block needs is not computed. Float arrays of any shape and layout are taken, 0-d and empty included. Nothing warns:
infinities and NaN are values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base import dtypes
from backburn.ops.bodies import special as bodies
from backburn.ops.table import OPERATIONS

Array = NDArray[Any]

# Bytes of one temporary: a dozen fit in the L2 cache, and one is long enough to hide the overhead of the calls.
BLOCK_BYTES = 1 << 17

# Computed in float64 also for float32, in which each of their roundings would cost a unit, as by the compiled kernels.
WIDE = (bodies.ndtr, bodies.log_ndtr)


class _Lanes(bodies.Blocks):
    """NumPy's functions under the contract's names, for one block of float32 or float64."""

    abs, sign, neg = np.absolute, np.sign, np.negative
    add, sub, mul, div = np.add, np.subtract, np.multiply, np.divide
    maximum, minimum, where = np.maximum, np.minimum, np.where
    sqrt, reciprocal, exp, log, log1p = np.sqrt, np.reciprocal, np.exp, np.log, np.log1p
    sin, tan, tanh = np.sin, np.tan, np.tanh
    floor, round = np.floor, np.rint
    equal, less, less_equal = np.equal, np.less, np.less_equal

    @staticmethod
    def dtype(x: Array) -> dtypes.DType:
        return dtypes.float64 if x.dtype == np.float64 else dtypes.float32

    @staticmethod
    def horner(x: Array, coefficients: tuple[float, ...]) -> Array:
        *rest, second, first = coefficients
        if first == 1.0:
            total = np.add(x, second)
        else:
            total = np.multiply(x, first)
            np.add(total, second, out=total)
        for coefficient in reversed(rest):
            np.multiply(total, x, out=total)
            np.add(total, coefficient, out=total)
        return total

    @staticmethod
    def select(condition: Array, then: Callable[[], Array], otherwise: Callable[[], Array]) -> Array:
        if condition.all():
            return then()
        if not condition.any():
            return otherwise()
        return np.where(condition, then(), otherwise())


def blockwise(body: Callable[..., Array], x: Array, /, *options: Any, **named: Any) -> Array:
    """``body(k, x, ...)`` in blocks, for NumPy's functions ``k``; 16-bit floats are computed in float32 at least.

    >>> blockwise(bodies.erf, np.array([0.0, 0.5, np.inf]))
    array([0.        , 0.52049988, 1.        ])
    >>> blockwise(bodies.lgamma, np.array(5.0)), blockwise(bodies.erf, np.float32([[2, -2]]))
    (array(3.17805383), array([[ 0.9953223, -0.9953223]], dtype=float32))
    """
    if x.flags.f_contiguous and not x.flags.c_contiguous:
        return blockwise(body, x.T, *options, **named).T
    out = np.empty(x.shape, x.dtype)
    source, target = x.reshape(-1), out.reshape(-1)
    width = np.dtype(np.float64 if x.dtype == np.float64 or body in WIDE else np.float32)
    size = BLOCK_BYTES // width.itemsize
    with np.errstate(all="ignore"):
        for start in range(0, source.size, size):
            block = source[start : start + size].astype(width, copy=False)
            target[start : start + size] = body(_Lanes, block, *options, **named)
    return out


#: The operations whose bodies are computed in blocks, by name.
FUNCTIONS = {name: partial(blockwise, getattr(bodies, name)) for name in OPERATIONS if hasattr(bodies, name)}
