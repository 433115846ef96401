"""JAX as a backburn backend: ``"jax"`` is JAX's default device, ``"jax:1"`` is device 1 of its default platform.

JAX computes, operation by operation, and backburn differentiates: ``jax.grad`` and ``jax.jit`` are not used.

    >>> k = JaxBackend()
    >>> k.add(jnp.asarray([1.0, 2.0]), 1.0)
    Array([2., 3.], dtype=float64)
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from backburn.backend import Backend, BackendWarning, Capabilities
from backburn.backend.adapters import (
    Quantized,
    arange_length,
    check_shapes,
    decompositions,
    falling,
    from_start,
    held,
    holding,
    integral,
    of_tensors,
    scan,
    take_quantized,
)
from backburn.dtypes import DTYPES, DType, as_dtype, qint8
from backburn.errors import ArgumentError, BackendMismatchError

Array = jax.Array
Shape = tuple[int, ...]
Key = tuple[slice, ...]


class JaxBackend(Backend[Array, Array, Array, Quantized[Array]]):
    """JAX arrays. The first instance enables 64-bit types in JAX, for the whole process, and warns about it."""

    def __init__(self, device: int | None = None) -> None:
        config: Any = jax.config
        if not config.jax_enable_x64:
            config.update("jax_enable_x64", True)
            warnings.warn(
                "the jax backend has set jax_enable_x64 for this process: without it JAX has no 64-bit numbers",
                BackendWarning,
                stacklevel=2,
            )
        self._spec = "jax" if device is None else f"jax:{device}"
        self._device = jax.devices()[device or 0]

    spec = property(lambda self: self._spec)
    device = property(lambda self: f"{self._device.platform}:{self._device.id}")

    @property
    def capabilities(self) -> Capabilities:
        dtypes = [d for d in DTYPES.values() if d.kind != "quantized"]
        uses = {d: frozenset({"storage", "arithmetic"}) for d in dtypes}
        return Capabilities({**uses, qint8: frozenset({"storage"})})

    def dtype(self, x: Any, /) -> DType:
        if not isinstance(x, (Array, Quantized)):
            raise BackendMismatchError(f"{type(x).__name__} is not a primitive of the jax backend")
        return as_dtype(x.dtype)

    def from_numpy(self, array: Any) -> Array:
        own = np.array(array, as_dtype(array.dtype).dtype, copy=True)  # in native byte order
        result: Array = jax.device_put(own, self._device)
        return result

    def to_numpy(self, x: Any, /) -> Any:
        return np.array(self.dequantize(x) if isinstance(x, Quantized) else x)

    def full(self, shape: Shape, value: float, dtype: DType) -> Array:
        return jnp.full(shape, held(value, dtype), dtype.dtype, device=self._device)

    def arange(self, start: float, stop: float, step: float, dtype: DType) -> Array:
        wide = np.float64 if dtype.is_floating else np.int64
        indices = jnp.arange(arange_length(start, stop, step), dtype=wide, device=self._device)
        return (indices * step + start).astype(dtype.dtype)

    # ---- where JAX differs ----

    def argsort(self, x: Array, /, axis: int, descending: bool = False) -> Array:
        return jnp.argsort(falling(self, x) if descending else x, axis=axis, stable=True).astype(np.int64)

    def take(self, x: Array, indices: Array, /, axis: int) -> Array:
        return jnp.take(x, from_start(self, indices, x.shape[axis]), axis=axis)

    def take_along_axis(self, x: Array, indices: Array, /, axis: int) -> Array:
        return jnp.take_along_axis(x, from_start(self, indices, x.shape[axis]), axis)

    def scatter(self, x: Array, indices: Array, values: Any, /, axis: int, mode: str = "assign") -> Array:
        grid = list(jnp.indices(indices.shape, sparse=True))
        grid[axis] = from_start(self, indices, x.shape[axis])
        place = tuple(grid)
        if mode == "add":
            return wide(x).at[place].add(values).astype(x.dtype)
        if mode != "assign":
            raise ArgumentError(f"scatter: the mode is 'assign' or 'add', not {mode!r}")
        # With duplicate indices JAX's result is undefined; the contract keeps the last value.
        numbers = jnp.arange(1, indices.shape[axis] + 1).reshape(-1, *[1] * (x.ndim - 1 - axis))
        last = jnp.zeros(x.shape, np.int64).at[place].max(jnp.broadcast_to(numbers, indices.shape))
        values = jnp.broadcast_to(jnp.asarray(values, x.dtype), indices.shape)
        if not indices.size:
            return x
        return jnp.where(last > 0, jnp.take_along_axis(values, jnp.maximum(last - 1, 0), axis), x)

    def rfft(self, x: Array, /, axis: int) -> tuple[Array, Array]:
        result = jnp.fft.rfft(wide(x), axis=axis)
        return jnp.real(result).astype(x.dtype), jnp.imag(result).astype(x.dtype)

    def irfft(self, real: Array, imag: Array, /, length: int, axis: int) -> Array:
        return jnp.fft.irfft(jax.lax.complex(wide(real), wide(imag)), length, axis=axis).astype(real.dtype)


def wide(x: Array) -> Array:
    """``x``, with 16-bit floats converted to float32 for accumulation."""
    return x.astype(np.float32) if x.dtype in (np.float16, jnp.bfloat16) else x


def reduction(function: Callable[..., Array], x: Array, /, axis: Any, keepdims: bool = False) -> Array:
    return function(x, axis=axis, keepdims=keepdims)


def accumulation(function: Callable[..., Array], x: Array, /, axis: Shape, keepdims: bool = False) -> Array:
    """A sum or product in the dtype of ``x``; JAX would widen integers."""
    return function(wide(x), axis=axis, keepdims=keepdims, dtype=wide(x).dtype).astype(x.dtype)


def matmul(x: Array, y: Array, /) -> Array:
    return jnp.matmul(wide(x), wide(y)).astype(x.dtype)


ALIKE = """
    add maximum minimum pow abs sign sqrt exp expm1 log log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh
    acosh atanh floor ceil round trunc isnan isinf nextafter real imag equal less less_equal logical_and logical_or
    logical_not bitwise_and bitwise_or bitwise_xor bitwise_invert bitwise_left_shift bitwise_right_shift where
"""
REDUCTIONS = ("max", "min", "any", "all", "argmax", "argmin")
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(jnp, name) for name in ALIKE.split()},
    **{name: functools.partial(reduction, getattr(jnp, name)) for name in REDUCTIONS},
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": jnp.divide,
    "neg": jnp.negative,
    "astype": lambda x, /, dtype: x.astype(dtype.dtype),
    "sum": functools.partial(accumulation, jnp.sum),
    "prod": functools.partial(accumulation, jnp.prod),
    "matmul": matmul,
    "slice": lambda x, /, key: x[key],
    "slice_assign": lambda x, value, /, key: x.at[key].set(value),
    "nonzero": lambda x, /: jnp.argwhere(x).astype(np.int64),
    "reshape": lambda x, /, shape: jnp.reshape(x, shape),
    "broadcast_to": lambda x, /, shape: jnp.broadcast_to(x, shape),
    "permute_dims": lambda x, /, axes: jnp.permute_dims(x, axes),
    "concat": lambda tensors, /, axis: jnp.concat(tensors, axis=axis),
}
WRAPPING = "add sub mul maximum minimum pow bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift"
METHODS: dict[str, Callable[..., Any]] = {
    **{name: holding(FUNCTIONS.pop(name)) for name in (*WRAPPING.split(), "equal", "less", "less_equal")},
    **decompositions(jnp.linalg),
    "complex": of_tensors(lambda x, y: jax.lax.complex(*jnp.broadcast_arrays(x, y))),
    "floor_divide": integral(jnp.floor_divide),
    "remainder": integral(jnp.remainder),
    "cumulative_sum": scan(lambda x, axis: jnp.cumsum(x, axis, dtype=x.dtype)),
    "cumulative_prod": scan(lambda x, axis: jnp.cumprod(x, axis, dtype=x.dtype)),
}
for _name, _function in FUNCTIONS.items():
    setattr(JaxBackend, _name, staticmethod(_function))
for _name, _function in METHODS.items():
    setattr(JaxBackend, _name, _function)
check_shapes(JaxBackend, "slice", "slice_assign", "take_along_axis", "scatter", "irfft")
take_quantized(JaxBackend)
