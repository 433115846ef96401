"""NumPy: special functions, by the contract's bodies, evaluated in cache blocks.

A block and its temporaries stay in the processor's cache; polynomials are evaluated in place; a branch that no element
of a block needs is not computed. Every function takes a float array of any shape and layout, 0-d and empty included,
and returns a new array of its shape and dtype (or ``out``: C-contiguous, of that shape and dtype). Nothing warns:
infinities and NaN are values.

    >>> erf(np.array([0.0, 0.5, np.inf]))
    array([0.        , 0.52049988, 1.        ])
    >>> lgamma(np.array(5.0)), erf(np.float32([[2, -2]]))
    (array(3.17805383), array([[ 0.9953223, -0.9953223]], dtype=float32))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.backend import special as bodies
from backburn.base import dtypes
from backburn_numpy.threads import num_threads

Array = NDArray[Any]

# Bytes of one temporary: a dozen fit in the L2 cache, and one is long enough to hide the overhead of the calls.
BLOCK_BYTES = 1 << 17


class _Lanes(bodies.Blocks):
    """NumPy's functions under the contract's names, for one block of float32 or float64."""

    abs, sign, neg = np.absolute, np.sign, np.negative
    add, sub, mul, div = np.add, np.subtract, np.multiply, np.divide
    maximum, minimum, where = np.maximum, np.minimum, np.where
    sqrt, reciprocal, exp, log = np.sqrt, np.reciprocal, np.exp, np.log
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


def blockwise(body: Callable[[Any, Array], Array], x: Array, out: Array | None = None) -> Array:
    """``body`` of ``x``, in blocks; 16-bit floats are computed in float32.

    ``out`` is given by a block kernel, whose block is not split further if several threads would wait for the GIL.
    """
    whole = out is not None and num_threads() > 1
    if out is None:
        if x.flags.f_contiguous and not x.flags.c_contiguous:
            return blockwise(body, x.T).T
        out = np.empty(x.shape, x.dtype)
    source, target = x.reshape(-1), out.reshape(-1, copy=False)
    width = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    size = max(BLOCK_BYTES // width.itemsize, source.size if whole else 0)
    with np.errstate(all="ignore"):
        for start in range(0, source.size, size):
            block = source[start : start + size].astype(width, copy=False)
            target[start : start + size] = body(_Lanes, block)
    return out


def erf(x: Array, out: Array | None = None) -> Array:
    """The error function. See :func:`backburn.backend.special.erf`."""
    return blockwise(bodies.erf, x, out)


def erfc(x: Array, out: Array | None = None) -> Array:
    """The complementary error function. See :func:`backburn.backend.special.erfc`."""
    return blockwise(bodies.erfc, x, out)


def erfinv(x: Array, out: Array | None = None) -> Array:
    """The inverse of the error function. See :func:`backburn.backend.special.erfinv`."""
    return blockwise(bodies.erfinv, x, out)


def lgamma(x: Array, out: Array | None = None) -> Array:
    """The logarithm of the absolute value of the gamma function. See :func:`backburn.backend.special.lgamma`."""
    return blockwise(bodies.lgamma, x, out)


def digamma(x: Array, out: Array | None = None) -> Array:
    """The derivative of :func:`lgamma`. See :func:`backburn.backend.special.digamma`."""
    return blockwise(bodies.digamma, x, out)


def polygamma(x: Array, n: int = 1, out: Array | None = None) -> Array:
    """The n-th derivative of :func:`digamma`. See :func:`backburn.backend.special.polygamma`."""
    return blockwise(lambda k, block: bodies.polygamma(k, block, n), x, out)


def sinc(x: Array, out: Array | None = None) -> Array:
    """``sin(pi x) / (pi x)``. See :func:`backburn.backend.special.sinc`."""
    return blockwise(bodies.sinc, x, out)


def i0(x: Array, out: Array | None = None) -> Array:
    """The modified Bessel function of the first kind and order 0. See :func:`backburn.backend.special.i0`."""
    return blockwise(bodies.i0, x, out)


def i0e(x: Array, out: Array | None = None) -> Array:
    """``exp(-|x|) * i0(x)``. See :func:`backburn.backend.special.i0e`."""
    return blockwise(bodies.i0e, x, out)


def i1(x: Array, out: Array | None = None) -> Array:
    """The modified Bessel function of the first kind and order 1. See :func:`backburn.backend.special.i1`."""
    return blockwise(bodies.i1, x, out)


def i1e(x: Array, out: Array | None = None) -> Array:
    """``exp(-|x|) * i1(x)``. See :func:`backburn.backend.special.i1e`."""
    return blockwise(bodies.i1e, x, out)
