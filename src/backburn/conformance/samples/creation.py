"""Samples: creating tensors, and changing their dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.base.dtypes import (
    DType,
    as_dtype,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
)
from backburn.conformance.samples.table import booleans, case, integers, real, samples


def astype(x: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """NumPy's cast, of values that the dtype holds."""
    return x.astype(dtype.dtype)


def arange(start: Any, stop: Any, step: Any, dtype: DType) -> NDArray[Any]:
    """The values in double precision."""
    if dtype.kind == "int":
        return np.arange(start, stop, step).astype(dtype.dtype)
    return np.asarray(start + step * np.arange(np.ceil((stop - start) / step), dtype=np.float64))


OTHER_INTS = ("int16", "int32", "int64", "uint16", "uint32", "uint64")

samples("to_numpy", np.asarray, case(real(2, 3)), case(real()), case(real(0, 2)), case(integers(3)), case(booleans(2)))
samples(
    "to_numpy_many",
    lambda tensors: (np.asarray(tensors[0]),),
    case([real(2, 3)]),
    case([integers(3)]),
    case([booleans(2)]),
    because="one tensor: of several there are as many results, which the table cannot say",
)
samples(
    "astype",
    astype,
    case(real(2, 3), dtype=float64),
    case(real(), dtype=float64),
    case(real(0, 3), dtype=float64),
    case(real(2, 3), dtype=float32, smooth=0, gradients=(np.ones((2, 3)),)),
    case(real(2, 3), dtype=float16, smooth=0, gradients=(np.ones((2, 3)),)),
    case(np.array([-1.5, -0.0, 0.5, 2.5, 100.0]), dtype=int32),
    case(np.array([-1.5, -0.5, 0.0, 100.9]), dtype=int8),
    case(np.array([0.0, -0.0, 0.25, np.inf, np.nan]), dtype=bool_),
    case(integers(2, 3), dtype=float32),
    case(integers(4), dtype=bool_),
    case(np.array([-1, 255, 256, 2**40 + 3]), dtype=uint8),
    case(np.array([-129, 128, 2**31]), dtype=int8),
    case(booleans(2, 3), dtype=float64),
    case(booleans(3), dtype=int64),
    case(booleans(), dtype=bool_),
    *(case(np.array([-1, 255, 65536, 2**40 + 3]), dtype=as_dtype(name)) for name in OTHER_INTS),
    *(case(np.array([0.0, 1.5, 100.9]), dtype=as_dtype(name)) for name in OTHER_INTS),
    case(real(2, 3), dtype=bfloat16, smooth=0),
    case(np.array([2**40 + 1, -(2**53)]), dtype=float32),
    case(np.array([2**40 + 1, -(2**53)]), dtype=float64),
    case(np.array([2**63 + 2**40, 3], np.uint64), dtype=float64),
    tolerance=0.05,
    because="a cast rounds once, to the nearest",
)
samples(
    "full",
    lambda shape, value, dtype: np.full(shape, value, dtype.dtype),
    case(shape=(2, 3), value=1.5, dtype=float32),
    case(shape=(), value=-3, dtype=int64),
    case(shape=(0, 2), value=True, dtype=bool_),
    case(shape=(2,), value=np.inf, dtype=float16),
    case(shape=(2,), value=7, dtype=int64),
    case(shape=(2,), value=2**53 + 1, dtype=int64, note="exact beyond float64"),
    *(case(shape=(2, 3), value=1.5 - 2j, dtype=dtype, exact=True) for dtype in (complex64, complex128)),
)
samples(
    "zeros",
    lambda shape, dtype: np.zeros(shape, dtype.dtype),
    case(shape=(2, 3), dtype=float32),
    case(shape=(), dtype=int8),
    case(shape=(0,), dtype=bool_),
    *(case(shape=(2, 3), dtype=dtype) for dtype in (complex64, complex128)),
)
samples(
    "ones",
    lambda shape, dtype: np.ones(shape, dtype.dtype),
    case(shape=(2, 3), dtype=float64),
    case(shape=(), dtype=uint8),
    case(shape=(3,), dtype=bool_),
    *(case(shape=(2, 3), dtype=dtype) for dtype in (complex64, complex128)),
)
samples(
    "arange",
    arange,
    case(start=0, stop=5, step=1, dtype=int64),
    case(start=5, stop=-6, step=-3, dtype=int32),
    case(start=3, stop=3, step=1, dtype=int8),
    case(start=2, stop=-2, step=1, dtype=float32),
    case(start=2**62, stop=2**62 + 3, step=1, dtype=int64),
    case(start=0.0, stop=1.0, step=0.1, dtype=float32),
    case(start=-1, stop=2, step=0.25, dtype=float64),
    case(start=1, stop=0, step=-0.3, dtype=float16),
    case(start=0.0, stop=99.95, step=0.1, dtype=float32, note="steps are counted, not added up"),
)
samples(
    "eye",
    lambda n, m, offset, dtype: np.eye(n, m, offset, dtype.dtype),
    case(n=3, m=3, offset=0, dtype=float32),
    case(n=2, m=4, offset=1, dtype=int64),
    case(n=4, m=2, offset=-1, dtype=bool_),
    case(n=2, m=2, offset=5, dtype=float64),
    case(n=0, m=3, offset=0, dtype=float32),
    *(case(n=2, m=3, offset=1, dtype=dtype) for dtype in (complex64, complex128)),
)
samples(
    "linspace",
    lambda start, stop, num, endpoint, dtype: np.linspace(start, stop, num, endpoint),
    case(start=0.0, stop=1.0, num=7, endpoint=True, dtype=float32),
    case(start=0.0, stop=1.0, num=7, endpoint=False, dtype=float64),
    case(start=3.0, stop=-3.0, num=4, endpoint=True, dtype=float16),
    case(start=2.0, stop=5.0, num=1, endpoint=True, dtype=float32),
    case(start=2.0, stop=5.0, num=0, endpoint=False, dtype=float64),
)
