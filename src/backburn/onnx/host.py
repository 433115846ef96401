"""Operators on the host: arithmetic on shapes never enters a backend.

Exporters compute shapes in the graph: ``Shape``, ``Gather``, ``Concat``, ``Reshape``. On a backend they would be read
back at each step, and a step that reads values cannot be replayed. So if all inputs of these operators are NumPy
arrays, the result is one as well, unless it has more than :data:`MOST` elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backburn.onnx.dtypes import held
from backburn.onnx.registry import Host, on_host

#: The largest number of elements of a result that stays on the host.
MOST = 65_536


def _fits(shape: Sequence[int] | NDArray[Any]) -> bool:
    return all(n >= 0 for n in shape) and math.prod(map(int, shape)) <= MOST


def axes_of(axes: Any, given: Any, rank: int) -> tuple[int, ...] | None:
    """Axes that are an attribute in older opsets and an input in newer ones; None for none."""
    found = axes if given is None else [int(n) for n in np.ravel(given)]
    return None if found is None else tuple(int(n) + rank if n < 0 else int(n) for n in found)


def _enter_elementwise() -> None:
    """Register NumPy's element-wise functions."""
    two: dict[str, Callable[..., Any]] = {
        "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Equal": np.equal, "Less": np.less,
        "Greater": np.greater, "LessOrEqual": np.less_equal, "GreaterOrEqual": np.greater_equal, "And": np.logical_and,
        "Or": np.logical_or, "Xor": np.logical_xor, "Pow": lambda x, y: np.power(x, y).astype(x.dtype),
    }  # fmt: skip
    one: dict[str, Callable[..., Any]] = {
        "Neg": np.negative, "Abs": np.abs, "Sign": np.sign, "Floor": np.floor, "Ceil": np.ceil, "Sqrt": np.sqrt,
        "Not": np.logical_not, "Identity": lambda x: x, "Reciprocal": lambda x: (1 / x).astype(x.dtype),
    }  # fmt: skip
    several: dict[str, Callable[..., Any]] = {"Min": np.minimum, "Max": np.maximum, "Sum": np.add}
    for name, function in two.items():
        on_host(name)(_binary(function))
    for name, function in one.items():
        on_host(name)(_unary(function))
    for name, function in several.items():
        on_host(name)(_variadic(function))


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(x: Host, y: Host, /) -> Any:
        return np.asarray(function(x, y)) if _fits(np.broadcast_shapes(x.shape, y.shape)) else NotImplemented

    return compute


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(x: Host, /) -> Any:
        return np.asarray(function(x))

    return compute


def _variadic(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(*arrays: Host) -> Any:
        if not _fits(np.broadcast_shapes(*(x.shape for x in arrays))):
            return NotImplemented
        result = arrays[0]
        for x in arrays[1:]:
            result = function(result, x)
        return np.asarray(result)

    return compute


_enter_elementwise()


@on_host("Div")
def div(x: Host, y: Host, /) -> Any:
    """Quotients; those of integers are rounded towards zero."""
    if not _fits(np.broadcast_shapes(x.shape, y.shape)):
        return NotImplemented
    if x.dtype.kind == "f":
        return np.asarray(x / y)
    if (y == 0).any():
        raise ZeroDivisionError("division of integers by zero")
    return np.asarray((np.abs(x) // np.abs(y) * np.sign(x) * np.sign(y)).astype(x.dtype))


@on_host("Mod")
def mod(x: Host, y: Host, /, *, fmod: int = 0) -> Any:
    """Remainders, with the sign of the divisor, or of the dividend with ``fmod``."""
    if not _fits(np.broadcast_shapes(x.shape, y.shape)):
        return NotImplemented
    if x.dtype.kind != "f" and (y == 0).any():
        raise ZeroDivisionError("remainder of integers by zero")
    return np.asarray(np.fmod(x, y) if fmod else np.mod(x, y))


@on_host("Where")
def where(condition: Host, x: Host, y: Host, /) -> Any:
    """Elements of one of two arrays."""
    shape = np.broadcast_shapes(condition.shape, x.shape, y.shape)
    return np.where(condition, x, y) if _fits(shape) else NotImplemented


@on_host("Cast")
def cast(x: Host, /, *, to: int, saturate: int = 1) -> Any:
    """Numbers in another dtype; data types held in another dtype are left to the handler."""
    target = held(to)
    if target is None or target.name == "bfloat16" or to > 16 or x.dtype.name == "bfloat16":
        return NotImplemented
    return x.astype(target.dtype)


@on_host("Shape")
def shape(x: Host, /, *, start: int = 0, end: int | None = None) -> Any:
    """The shape of numbers on the host."""
    return np.asarray(x.shape[start:end], np.int64)


@on_host("Size")
def size(x: Host, /) -> Any:
    """The number of elements."""
    return np.asarray(x.size, np.int64)


@on_host("Gather")
def gather(x: Host, indices: Host, /, *, axis: int = 0) -> Any:
    """Elements along an axis."""
    rest = x.size // max(x.shape[axis], 1)
    return np.asarray(np.take(x, indices, axis)) if _fits((rest, indices.size)) else NotImplemented


@on_host("Concat")
def concat(*arrays: Host, axis: int) -> Any:
    """Concatenated arrays."""
    return np.concatenate(arrays, axis) if _fits((sum(x.size for x in arrays),)) else NotImplemented


@on_host("Slice")
def slice_(
    x: Host,
    starts: Host | None = None,
    ends: Host | None = None,
    axes: Host | None = None,
    steps: Host | None = None,
    /,
) -> Any:
    """Part of an array."""
    if starts is None or ends is None:
        return NotImplemented
    return x[slices(x.shape, starts, ends, axes, steps)]


def slices(lengths: Sequence[int], starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> tuple[slice, ...]:
    """The slices for starts, ends and steps along axes, which may exceed the axes."""
    found = [slice(None)] * len(lengths)
    chosen = range(len(starts)) if axes is None else [int(n) for n in axes]
    every = [1] * len(starts) if steps is None else [int(n) for n in steps]
    for start, end, axis, step in zip(map(int, starts), map(int, ends), chosen, every, strict=True):
        n = lengths[axis]
        if step == 0:
            raise ValueError("the step is 0")
        start, end = (place + n if place < 0 else place for place in (start, end))
        if step > 0:
            found[axis] = slice(min(max(start, 0), n), min(max(end, 0), n), step)
        else:
            start, end = min(max(start, -1), n - 1), min(max(end, -1), n - 1)
            found[axis] = slice(start, None if end < 0 else end, step) if start >= 0 else slice(0, 0)
    return tuple(found)


@on_host("Squeeze")
def squeeze(x: Host, given: Host | None = None, /, *, axes: Any = None) -> Any:
    """Without axes of length 1."""
    return np.squeeze(x, axes_of(axes, given, x.ndim))


@on_host("Unsqueeze")
def unsqueeze(x: Host, given: Host | None = None, /, *, axes: Any = None) -> Any:
    """With more axes of length 1."""
    found = axes if given is None else [int(n) for n in np.ravel(given)]
    return np.expand_dims(x, tuple(found))


@on_host("Reshape")
def reshape(x: Host, wanted: Host, /, *, allowzero: int = 0) -> Any:
    """In another shape."""
    return x.reshape(shape_for(x.shape, wanted, allowzero))


def shape_for(old: Sequence[int], wanted: NDArray[Any], allowzero: int) -> tuple[int, ...]:
    """The shape for ``Reshape``, in which 0 copies a length unless ``allowzero``."""
    return tuple(old[i] if n == 0 and not allowzero else int(n) for i, n in enumerate(wanted))


@on_host("Flatten")
def flatten(x: Host, /, *, axis: int = 1) -> Any:
    """As a matrix."""
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), -1) if x.size else NotImplemented


@on_host("Transpose")
def transpose(x: Host, /, *, perm: Any = None) -> Any:
    """With axes in another order."""
    return np.transpose(x, perm)


@on_host("Expand")
def expand(x: Host, wanted: Host, /) -> Any:
    """Repeated along axes."""
    target = np.broadcast_shapes(x.shape, tuple(map(int, wanted))) if _fits(wanted) else None
    return NotImplemented if target is None or not _fits(target) else np.broadcast_to(x, target).copy()


@on_host("Tile")
def tile(x: Host, repeats: Host, /) -> Any:
    """Repeated along axes."""
    return np.tile(x, repeats) if _fits([n * int(r) for n, r in zip(x.shape, repeats, strict=True)]) else NotImplemented


@on_host("Range")
def range_(start: Host, limit: Host, delta: Host, /) -> Any:
    """Numbers in steps."""
    count = range_length(start, limit, delta)
    if count > MOST:
        return NotImplemented
    return (start + np.arange(count) * delta).astype(start.dtype)


def range_length(start: Any, limit: Any, delta: Any) -> int:
    """The length of a ``Range``."""
    if np.ravel(delta)[0] == 0:
        raise ValueError("the delta is 0")
    first, last, step = (x.item() for x in (start, limit, delta))
    return max(math.ceil((last - first) / step), 0)


@on_host("ConstantOfShape")
def constant_of_shape(lengths: Host, /, *, value: Any = None) -> Any:
    """One value throughout."""
    if lengths.size and not _fits(lengths):
        return NotImplemented
    filled = np.zeros(1, np.float32) if value is None else value[0]
    return np.full(tuple(map(int, lengths)), filled.reshape(-1)[0], filled.dtype)


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(
        x: Host, given: Host | None = None, /, *, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Any:
        found = axes_of(axes, given, x.ndim)
        if not found:
            if noop_with_empty_axes:
                return x
            found = tuple(range(x.ndim))
        return np.asarray(function(x, axis=found, keepdims=bool(keepdims))).astype(x.dtype)

    return compute


_SUMS: dict[str, Callable[..., Any]] = {"Sum": np.sum, "Prod": np.prod, "Max": np.max, "Min": np.min}
for _name, _function in _SUMS.items():
    on_host(f"Reduce{_name}")(_reduced(_function))


@on_host("CumSum")
def cumsum(x: Host, axis: Host, /, *, exclusive: int = 0, reverse: int = 0) -> Any:
    """Running sums; exclusive and reversed ones are left to the handler."""
    if exclusive or reverse:
        return NotImplemented
    return np.cumsum(x, int(axis.reshape(())), dtype=x.dtype)


@on_host("NonZero")
def nonzero(x: Host, /) -> Any:
    """The indices of elements that are not zero."""
    return np.asarray(np.nonzero(np.atleast_1d(x)), np.int64)


@on_host("Split")
def split(x: Host, given: Host | None = None, /, *, axis: int = 0, split: Any = None, num_outputs: int = 0) -> Any:
    """Parts of given lengths along an axis."""
    lengths = split if given is None else given
    if lengths is None or sum(map(int, lengths)) != x.shape[axis]:
        return NotImplemented
    return tuple(np.split(x, np.cumsum(lengths)[:-1], axis))


@on_host("ScatterElements")
def scatter_elements(x: Host, indices: Host, updates: Host, /, *, axis: int = 0, reduction: str = "none") -> Any:
    """With elements at indices replaced."""
    if reduction != "none":
        return NotImplemented
    result = x.copy()
    np.put_along_axis(result, np.where(indices < 0, indices + x.shape[axis], indices), updates, axis)
    return result


@on_host("ScatterND")
def scatter_nd(x: Host, indices: Host, updates: Host, /, *, reduction: str = "none") -> Any:
    """With parts at indices replaced."""
    if reduction != "none":
        return NotImplemented
    result = x.copy()
    result[tuple(np.moveaxis(indices, -1, 0))] = updates
    return result


@on_host("Clip")
def clip(x: Host, low: Host | None = None, high: Host | None = None, /) -> Any:
    """Between two bounds."""
    return np.asarray(x if low is None and high is None else np.clip(x, low, high)).astype(x.dtype)
