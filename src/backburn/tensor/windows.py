"""Tensor functions: window functions for spectral analysis, in the namespace ``backburn.fourier``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from backburn.base.contexts import default_float
from backburn.base.errors import DTypeError
from backburn.tensor.core.defaults import BackendLike, as_backend
from backburn.tensor.core.dispatch import call, cast, create, upcast_half_dtype
from backburn.tensor.core.options import dtype_or_default, integer

if TYPE_CHECKING:
    from backburn.backend.contract import AnyBackend
    from backburn.base.dtypes import DType
    from backburn.tensor.classes import FloatTensor


def points(name: str, option: str, value: Any, default: int | None = None, least: int = 1) -> int:
    """A number of points, at least ``least``; None stands for the default, if there is one."""
    return default if value is None and default is not None else integer(name, option, value, least=least)


def float_dtype(name: str, dtype: Any, backend: AnyBackend) -> DType:
    """``dtype``, which must be a float dtype, or the default one."""
    out_dtype = dtype_or_default(dtype, default_float(backend), backend)
    if not out_dtype.is_floating:
        raise DTypeError(f"{name}: the dtype is a float dtype, not {out_dtype}")
    return out_dtype


def _cosines(name: str, n: int, periodic: bool, dtype: Any, backend: Any, *coefficients: float) -> Any:
    """``sum(c[j] * cos(2 pi j t / n))``; a symmetric window is a periodic one of n - 1 points and its first."""
    length = points(name, "the length", n, least=0)
    target = as_backend(backend)
    out_dtype = float_dtype(name, dtype, target)
    if length < 2:
        return create("full", target, shape=(length,), value=1.0, dtype=out_dtype)
    wide = upcast_half_dtype(out_dtype)  # 16-bit floats do not hold every position
    times = create("arange", target, start=0.0, stop=float(length), step=1.0, dtype=wide)
    result = create("full", target, shape=(length,), value=coefficients[0], dtype=wide)
    for j, coefficient in enumerate(coefficients[1:], 1):
        angles = call("mul", times, 2 * math.pi * j / (length if periodic else length - 1))
        result = call("add", result, call("mul", call("cos", angles), coefficient))
    return cast(result, out_dtype)


def hann_window(n: int, /, periodic: bool = True, *, dtype: Any = None, backend: BackendLike = None) -> FloatTensor:
    """The Hann window of ``n`` points, ``(1 - cos(2 pi t / n)) / 2``; with ``periodic=False`` both ends are 0.

    >>> import backburn as bb
    >>> bb.round(bb.fourier.hann_window(4) * 10).tolist()
    [0.0, 5.0, 10.0, 5.0]
    """
    return _cosines("hann_window", n, periodic, dtype, backend, 0.5, -0.5)


def hamming_window(n: int, /, periodic: bool = True, *, dtype: Any = None, backend: BackendLike = None) -> FloatTensor:
    """The Hamming window of ``n`` points, ``0.54 - 0.46 cos(2 pi t / n)``.

    >>> import backburn as bb
    >>> bb.round(bb.fourier.hamming_window(4) * 100).tolist()
    [8.0, 54.0, 100.0, 54.0]
    """
    return _cosines("hamming_window", n, periodic, dtype, backend, 0.54, -0.46)


def blackman_window(n: int, /, periodic: bool = True, *, dtype: Any = None, backend: BackendLike = None) -> FloatTensor:
    """The Blackman window of ``n`` points, ``0.42 - 0.5 cos(2 pi t / n) + 0.08 cos(4 pi t / n)``.

    >>> import backburn as bb
    >>> bb.round(bb.fourier.blackman_window(4) * 100).tolist()
    [-0.0, 34.0, 100.0, 34.0]
    """
    return _cosines("blackman_window", n, periodic, dtype, backend, 0.42, -0.5, 0.08)
