"""Operands for kernels, and the comparison of results with the NumPy backend's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from backburn.base.dtypes import DTYPES
from backburn.base.errors import DTypeError
from backburn_numpy import NumpyBackend

NUMPY: Any = NumpyBackend()

#: Tolerances relative to the largest element of NumPy's result: kernels sum in another order.
TOLERANCE = {"float32": 4e-6, "float64": 1e-14, "float16": 2e-3, "bfloat16": 1.6e-2}

FLOATS = tuple(TOLERANCE)


def host_dtype(name: str) -> Any:
    """NumPy's dtype of a name; skips the test if bfloat16 is not available."""
    try:
        return np.dtype(DTYPES[name].dtype)
    except DTypeError:
        pytest.skip("bfloat16 needs ml_dtypes")


def operand(shape: tuple[int, ...], dtype: str, seed: int = 0, offset: int = 0) -> Any:
    """Normally distributed values surrounded by NaN, ``offset`` elements after an aligned address."""
    wide = np.random.default_rng(seed).normal(size=shape)
    memory = np.full(math.prod(shape) + 64 + offset, np.nan, host_dtype(dtype))
    start = 32 + offset - memory.ctypes.data % 16 // memory.itemsize
    result = memory[start : start + math.prod(shape)].reshape(shape)
    result[...] = wide
    return result


def check(actual: Any, expected: Any, scale: float = 1.0, least: float = 1e-30) -> None:
    """Fail unless results agree in dtype, shape, NaN and infinity, and otherwise up to rounding.

    Tolerances are relative to the largest element or to ``least``, the size of terms that cancel in the results.
    """
    actual, expected = (r if isinstance(r, tuple) else (r,) for r in (actual, expected))
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        a64, e64 = a.astype(np.float64), e.astype(np.float64)
        finite = np.isfinite(e64)
        np.testing.assert_array_equal(a64[~finite], e64[~finite])
        largest = float(np.max(np.abs(e64[finite]), initial=least))
        tolerance = TOLERANCE.get(a.dtype.name, 0) * scale
        np.testing.assert_allclose(a64[finite], e64[finite], rtol=tolerance, atol=tolerance * largest)
