"""array-api-strict as a backburn backend: the Array API standard and nothing else.

It is slow, and only shows what the contract needs of an array library: the standard, and two operations computed on
the host because the standard has no equivalent.

    >>> k = StrictBackend()
    >>> k.add(k.from_numpy(np.array([1.0, 2.0])), 1.0)
    Array([2., 3.], dtype=array_api_strict.float64)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import array_api_strict as xp
import numpy as np

from backburn.backend import Backend, Capabilities, load_backend
from backburn.backend.adapters import (
    Quantized,
    arange_length,
    check_shapes,
    decompositions,
    falling,
    from_start,
    integral,
    scan,
    take_quantized,
)
from backburn.dtypes import STORAGES, DType, as_dtype, qint8
from backburn.errors import BackendMismatchError, Unsupported

Array = Any
Shape = tuple[int, ...]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64", "complex64", "complex128")
THEIRS = {as_dtype(name): getattr(xp, name) for name in (*FLOATS, *INTEGERS, "bool")}

#: Does what the standard cannot; loaded at import, since loading it also disables warnings about NaN.
HOST: Any = load_backend("numpy")


class StrictBackend(Backend[Array, Array, Array, Quantized[Array]]):
    """Arrays of array-api-strict, in host memory."""

    spec = property(lambda self: "array_api_strict")
    device = property(lambda self: "cpu")

    @property
    def capabilities(self) -> Capabilities:
        uses = {d: frozenset({"storage", "arithmetic"}) for d in THEIRS} | {qint8: frozenset({"storage"})}
        return Capabilities(uses, storages=frozenset(STORAGES))

    def dtype(self, x: Any, /) -> DType:
        if not isinstance(x, (type(xp.zeros(())), Quantized)):
            raise BackendMismatchError(f"{type(x).__name__} is not a primitive of the array_api_strict backend")
        return x.dtype if isinstance(x, Quantized) else as_dtype(x.dtype._np_dtype)

    def from_numpy(self, array: Any) -> Array:
        theirs(as_dtype(array.dtype))
        return xp.asarray(np.array(array, array.dtype.newbyteorder("="), copy=True, order="C"))

    def to_numpy(self, x: Any, /) -> Any:
        return np.array(self.dequantize(x) if isinstance(x, Quantized) else x)

    def scatter(self, x: Array, indices: Array, values: Any, /, axis: int, mode: str = "assign") -> Array:
        # The standard has no scatter: the host does it.
        values = self.to_numpy(values) if hasattr(values, "dtype") else values
        return self.from_numpy(HOST.scatter(self.to_numpy(x), self.to_numpy(indices), values, axis, mode))

    def complex(self, x: Any, y: Any, /) -> Array:
        # The standard multiplies by 1j, which loses infinities and signs of zeros: the host joins the parts.
        return self.from_numpy(HOST.complex(*(self.to_numpy(t) if hasattr(t, "dtype") else t for t in (x, y))))

    def argsort(self, x: Array, /, axis: int, descending: bool = False) -> Array:
        # The standard leaves the order of NaN open; array-api-strict sorts it last when ascending.
        x = falling(self, x) if descending else x
        return xp.argsort(xp.astype(x, xp.uint8) if x.dtype == xp.bool else x, axis=axis, stable=True)

    def take(self, x: Array, indices: Array, /, axis: int) -> Array:
        entries = xp.take(x, xp.reshape(from_start(self, indices, x.shape[axis]), (-1,)), axis=axis)
        return xp.reshape(entries, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def take_along_axis(self, x: Array, indices: Array, /, axis: int) -> Array:
        return xp.take_along_axis(x, from_start(self, indices, x.shape[axis]), axis=axis)


def theirs(dtype: DType) -> Any:
    """The standard's dtype of that name."""
    if dtype not in THEIRS:
        raise Unsupported(f"the Array API standard computes in {', '.join(d.name for d in THEIRS)}, and not in {dtype}")
    return THEIRS[dtype]


def arange(start: float, stop: float, step: float, dtype: DType) -> Array:
    indices = xp.arange(arange_length(start, stop, step), dtype=xp.float64 if dtype.is_floating else xp.int64)
    return xp.astype(indices * step + start, theirs(dtype))


def slice_assign(x: Array, value: Any, /, key: tuple[slice, ...]) -> Array:
    result = xp.asarray(x, copy=True)
    result[key] = value
    return result


def nonzero(x: Array, /) -> Array:
    indices = xp.stack(xp.nonzero(x if x.ndim else xp.reshape(x, (1,))), axis=1)
    return indices if x.ndim else indices[:, :0]


def rfft(x: Array, /, axis: int) -> tuple[Array, Array]:
    result = xp.fft.rfft(x, axis=axis)
    return xp.real(result), xp.imag(result)


def irfft(real: Array, imag: Array, /, length: int, axis: int) -> Array:
    wide = xp.complex128 if real.dtype == xp.float64 else xp.complex64
    return xp.fft.irfft(xp.astype(real, wide) + xp.astype(imag, wide) * 1j, n=length, axis=axis)


def reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reduction, whose options are keyword-only in the standard."""
    return lambda x, /, axis, keepdims=False: function(x, axis=axis, keepdims=keepdims)


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` without the warnings of NumPy, which array-api-strict computes with."""

    @functools.wraps(function)
    def operation(*operands: Any, **attributes: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*operands, **attributes)

    return operation


ALIKE = """
    add maximum minimum pow abs sign sqrt exp expm1 log log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh
    acosh atanh floor ceil round trunc isnan isinf nextafter equal less less_equal logical_and logical_or
    logical_not bitwise_and bitwise_or bitwise_xor bitwise_invert bitwise_left_shift bitwise_right_shift where
    matmul real imag
"""
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(xp, name) for name in ALIKE.split()},
    "sub": xp.subtract,
    "mul": xp.multiply,
    "div": xp.divide,
    "neg": xp.negative,
    "astype": lambda x, /, dtype: xp.astype(x, theirs(dtype)),
    "full": lambda shape, value, dtype: xp.full(shape, value, dtype=theirs(dtype)),
    "arange": arange,
    **{name: reduction(getattr(xp, name)) for name in ("max", "min", "any", "all", "argmax", "argmin")},
    "sum": lambda x, /, axis, keepdims=False: xp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype),
    "prod": lambda x, /, axis, keepdims=False: xp.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype),
    "slice": lambda x, /, key: x[key],
    "slice_assign": slice_assign,
    "nonzero": nonzero,
    "rfft": rfft,
    "irfft": irfft,
    "reshape": lambda x, /, shape: xp.reshape(x, shape),
    "broadcast_to": lambda x, /, shape: xp.broadcast_to(x, shape),
    "permute_dims": lambda x, /, axes: xp.permute_dims(x, axes),
    "concat": lambda tensors, /, axis: xp.concat(tensors, axis=axis),
}
METHODS: dict[str, Callable[..., Any]] = {
    **decompositions(xp.linalg, np.linalg.LinAlgError),
    "floor_divide": integral(xp.floor_divide),
    "remainder": integral(xp.remainder),
    "cumulative_sum": scan(lambda x, axis: xp.cumulative_sum(x, axis=axis, dtype=x.dtype)),
    "cumulative_prod": scan(lambda x, axis: xp.cumulative_prod(x, axis=axis, dtype=x.dtype)),
}
for _name, _function in FUNCTIONS.items():
    setattr(StrictBackend, _name, staticmethod(quiet(_function)))
for _name, _function in METHODS.items():
    setattr(StrictBackend, _name, quiet(_function))
check_shapes(StrictBackend, "slice_assign", "take_along_axis", "scatter", "irfft")
take_quantized(StrictBackend)
