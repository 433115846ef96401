"""NumPy's ufuncs as operations of the contract, quiet as described in :mod:`backburn_numpy.runtime.quiet`.

``out=...`` (the Ellipsis) makes a ufunc return 0-d results as arrays instead of scalars. Large results use recycled
memory, and very large ones are computed in several threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.introspect import opt_func_info

from backburn_numpy import compiled, tuning
from backburn_numpy.compiled import FLOAT32, FLOAT64
from backburn_numpy.elementwise.blocks import RowBuffer, run_small
from backburn_numpy.elementwise.fused import fuse_kernel
from backburn_numpy.elementwise.half_precision import cast_like, is_half, upcast_half
from backburn_numpy.elementwise.runs import FLIPPED, run_on_runs
from backburn_numpy.runtime.memory import contiguous, empty, memory_ordered
from backburn_numpy.runtime.quiet import RAISED, again
from backburn_numpy.runtime.threads import parallel_for

Array = Any


#: Functions that NumPy computes without vector instructions.
DIVISIONS = (np.remainder, np.fmod, np.floor_divide)

#: The kernels for NumPy's functions.
KERNELS: dict[np.ufunc, str] = {
    np.negative: "negative", np.absolute: "absolute", np.square: "square", np.sqrt: "sqrt",
    np.reciprocal: "reciprocal", np.exp: "exp", np.tanh: "tanh", np.add: "add", np.subtract: "subtract",
    np.multiply: "multiply", np.divide: "divide", np.maximum: "maximum", np.minimum: "minimum",
    np.sign: "sign", np.floor: "floor", np.rint: "round", np.log1p: "log1p",
    np.remainder: "remainder", np.fmod: "fmod", np.floor_divide: "floor_divide",
}  # fmt: skip


#: The kernels of float64 that take at most half the time of NumPy's functions.
DOUBLE_KERNELS: dict[np.ufunc, str] = {
    np.sin: "sin", np.cos: "cos", np.sqrt: "sqrt", np.reciprocal: "reciprocal", np.sign: "sign",
    np.remainder: "remainder", np.fmod: "fmod", np.floor_divide: "floor_divide",
}  # fmt: skip


def unary(ufunc: np.ufunc) -> Callable[[Array], Array]:
    """A ufunc of one operand as an operation."""
    threshold, least = _thresholds(ufunc)

    def operation(x: Array, /) -> Array:
        try:
            if x.nbytes >= least and (x.nbytes >= threshold or is_half(x)):
                return large(ufunc, x)
            return ufunc(x, out=...)
        except RAISED:
            return again(operation, x)

    if not (sizes := kernel_sizes(ufunc.__name__, _target(ufunc), compiled.level())):
        return operation
    name = ufunc.__name__
    of_float32, of_float64 = (sizes.get(dtype, math.inf) * dtype.itemsize for dtype in (FLOAT32, FLOAT64))
    fewest = min(of_float32, of_float64, least)

    def by_kernel(x: Array, /) -> Array:
        try:
            if (count := x.nbytes) >= fewest:
                width = x.itemsize
                is_double = width == 8 and count >= of_float64 and x.dtype.kind == "f"  # complex64 is as wide
                if is_double or (width == 4 and count >= of_float32):
                    if not x.flags.c_contiguous:
                        return _in_memory_order(name, by_kernel, x)
                    found = run_small(name, x)
                    if found is not None or (found := run_kernel(name, x, dtype=x.dtype)) is not None:
                        return found
                if count >= threshold or (width == 2 and count >= least and is_half(x)):
                    return large(ufunc, x)
            return ufunc(x, out=...)
        except RAISED:
            return again(operation, x)

    return by_kernel


def unary_of_any_size(ufunc: np.ufunc) -> Callable[[Array], Array]:
    """A ufunc of one operand that computes any number of elements as it computes many.

    So an element of the result does not depend on how many there are.
    """
    by_size, operation = kernel_sizes(ufunc.__name__, _target(ufunc), compiled.level()), unary(ufunc)
    names = dict.fromkeys(by_size, ufunc.__name__)
    names |= {dtype: of[ufunc] for dtype, of in ((FLOAT32, KERNELS), (FLOAT64, DOUBLE_KERNELS)) if ufunc in of}

    def same(x: Array, /) -> Array:
        if (name := names.get(x.dtype)) is not None:
            whole = np.ascontiguousarray(x)
            found = run_small(name, whole)
            if found is not None or (found := run_kernel(name, whole, dtype=x.dtype)) is not None:
                return found.reshape(x.shape)
        return operation(x)

    return same


def _in_memory_order(name: str, function: Callable[[Array], Array], x: Array) -> Array:
    """A function of a non-contiguous array: of a view with the axes in memory order, in runs, or else of a copy.

    So results do not depend on the layout.
    """
    if (in_order := memory_ordered(x)) is None:
        found = run_on_runs(name, x)
        return function(np.ascontiguousarray(x)) if found is None else found
    (view,), back = in_order
    return function(view).transpose(back)


def kernel_sizes(name: str, target: str, level: str | None) -> dict[np.dtype[Any], int]:
    """The number of elements from which a kernel is faster than NumPy's function, for each dtype with a kernel.

    ``target`` are the instructions that NumPy uses for the function, and ``level`` those of the kernels.
    """
    if level not in ("x86-64-v3", "x86-64-v4"):
        return {}
    if "AVX512" in target or "V4" in target:
        return {}
    return {np.dtype(dtype): size for dtype, size in tuning.MIN_ELEMENTS_FOR_FUNCTION_OF_AVX2.get(name, {}).items()}


def _target(ufunc: np.ufunc) -> str:
    """The instructions that NumPy uses for a function of float32, such as ``"AVX512_SKX"``; empty if unknown."""
    found = opt_func_info(func_name=f"^{ufunc.__name__}$").get(ufunc.__name__, {})
    return str(found.get("f" * ufunc.nargs, {}).get("current", ""))


def binary(ufunc: np.ufunc) -> Callable[[Array, Array], Array]:
    """A ufunc of two operands, one of which may be a Python scalar, as an operation.

    With a Python scalar a ufunc keeps the array's dtype if that is one of NumPy's own. For one of another package, such
    as bfloat16 (two bytes), the scalar must be converted first.
    """
    (threshold, least), ndarray, name = _thresholds(ufunc), np.ndarray, KERNELS.get(ufunc, "")
    flipped = FLIPPED.get(name)
    fewest = tuning.MIN_BYTES_FOR_RUNS if flipped is not None else math.inf

    def operation(x: Array, y: Array, /) -> Array:
        try:
            if x.__class__ is y.__class__:
                size = x.nbytes
                if (size >= fewest or y.nbytes >= fewest) and _differ(x, y):
                    found = run_on_runs(name, x, y)
                    if found is not None:
                        return found
                if size >= least and (size >= threshold or is_half(x)):
                    return large(ufunc, x, y)
            elif x.__class__ is ndarray:
                if x.itemsize == 2 and x.dtype.isbuiltin != 1:
                    y = np.asarray(y, x.dtype)
                if x.nbytes >= least and (x.nbytes >= threshold or is_half(x)):
                    return large(ufunc, x, y)
            else:
                if y.itemsize == 2 and y.dtype.isbuiltin != 1:
                    x = np.asarray(x, y.dtype)
                if y.nbytes >= least and (y.nbytes >= threshold or is_half(y)):
                    found = run_kernel(flipped, y, x)
                    if found is not None:
                        return found
            return ufunc(x, y, out=...)
        except RAISED:
            return again(operation, x, y)

    if not (sizes := kernel_sizes(ufunc.__name__, _target(ufunc), compiled.level())):
        return operation
    own = ufunc.__name__

    def by_kernel(x: Array, y: Array, /) -> Array:
        main = x if x.__class__ is ndarray else y
        if main.size < sizes.get(main.dtype, math.inf):
            return operation(x, y)
        try:
            x, y = (v if v.__class__ is ndarray else np.full(main.shape, v, main.dtype) for v in (x, y))
            if x.dtype is not main.dtype or y.dtype is not main.dtype:
                return operation(x, y)
            if x.shape != y.shape:
                x, y = np.broadcast_arrays(x, y)
            found = run_kernel(own, *map(contiguous, (x, y)), dtype=main.dtype)
            return operation(x, y) if found is None else found
        except RAISED:
            return again(operation, x, y)

    return by_kernel


def _differ(x: Array, y: Array) -> bool:
    """Whether two arrays differ in shape or in strides."""
    return x.shape != y.shape or x.strides != y.strides


def comparison(ufunc: np.ufunc) -> Callable[[Array, Array], Array]:
    """A comparison of two operands, one of which may be a Python scalar, as an operation."""

    def operation(x: Array, y: Array, /) -> Array:
        try:
            main = x if x.__class__ is np.ndarray else y
            if (
                main.itemsize == 2
                and is_half(main)
                and (main.nbytes >= tuning.MIN_HALF_BYTES_FOR_FLOAT32 or main.dtype.isbuiltin != 1)
            ):
                x, y = (_wide(o, main) for o in (x, y))
            return ufunc(x, y, out=...)
        except RAISED:
            return again(operation, x, y)

    return operation


def _wide(x: Array | float, like: Array) -> Array | float:
    """An array of 16-bit floats in float32, or a Python scalar rounded to them."""
    return upcast_half(x) if x.__class__ is np.ndarray else float(np.asarray(x, like.dtype))


def _thresholds(ufunc: np.ufunc) -> tuple[float, float]:
    """The bytes from which kernels compute, in several threads, and from which 16-bit floats are computed in float32.

    Infinite for bool results, which are small.
    """
    if ufunc in DIVISIONS:
        return tuning.MIN_BYTES_FOR_DIVISION, tuning.MIN_BYTES_FOR_DIVISION
    # Comparisons of Python objects, which tensors do not hold, give objects.
    return (
        (math.inf, math.inf)
        if all(t.endswith(("?", "O")) for t in ufunc.types)
        else (tuning.MIN_BYTES_FOR_THREADS, tuning.MIN_HALF_BYTES_FOR_FLOAT32)
    )


def run_kernel(name: str | None, x: Array, *others: Any, dtype: np.dtype[Any] = FLOAT32) -> Array | None:
    """A kernel's result for a large array of its dtype, and another or a scalar; None if none applies.

    16-bit floats are converted within the same pass.
    """
    if name is not None and is_half(x):
        return fuse_kernel(name, x, *others)
    if name is None or x.dtype is not dtype:
        return None
    return run_on_runs(name, x, *others)


def large(ufunc: np.ufunc, x: Array, *others: Array) -> Array:
    """``ufunc(x, *others)`` for a large array ``x``; other operands are arrays of its dtype or Python scalars."""
    if (in_order := memory_ordered(x, *others)) is not None:
        views, back = in_order
        return large(ufunc, *views).transpose(back)
    kernels, dtype = (DOUBLE_KERNELS, FLOAT64) if x.dtype is FLOAT64 else (KERNELS, FLOAT32)
    if (found := run_kernel(kernels.get(ufunc), x, *others, dtype=dtype)) is not None:
        return found
    if is_half(x) and compiled.level() is not None:
        # The result is rounded once, as by NumPy's own loops for them.
        return cast_like(large(ufunc, *(_wide(o, x) for o in (x, *others))), x)
    operands = (x, *others)
    arrays = [o for o in operands if o.__class__ is np.ndarray]
    shape = np.broadcast(*arrays).shape
    spaced = [a for a in arrays if not a.flags.c_contiguous and a.shape == shape and all(a.strides)]
    if spaced and (
        x.nbytes < tuning.MAX_BYTES_OF_STRIDED_RESULT
        or any([*a.strides] != sorted(a.strides, reverse=True) for a in spaced)
    ):
        return ufunc(*operands)  # in the operands' layout
    if not any(x.strides):  # broadcast from one element, such as a sum's gradient
        operands = (x[(slice(1),) * x.ndim], *others)
    out, size = empty(shape, x.dtype), math.prod(shape)
    alike = all(o.__class__ is not np.ndarray or (o.shape == shape and o.flags.c_contiguous) for o in operands)
    if size < tuning.MIN_ELEMENTS_FOR_SECOND_THREAD:
        with RowBuffer(0 if alike else shape[-1]):
            return ufunc(*operands, out=out)
    rows = shape[0]
    if rows < tuning.MIN_ROWS_FOR_THREADS and alike:
        operands = tuple(o.reshape(-1) if o.__class__ is np.ndarray else o for o in operands)
        target, rows = out.reshape(-1), size
    else:
        target = out

    def part(start: int, stop: int) -> None:
        pieces = (
            o[start:stop] if o.__class__ is np.ndarray and o.ndim == target.ndim and o.shape[0] == rows else o
            for o in operands
        )
        with RowBuffer(0 if alike else shape[-1]):
            ufunc(*pieces, out=target[start:stop])

    parallel_for(part, rows, max(1, tuning.MIN_ELEMENTS_FOR_SECOND_THREAD * rows // size))
    return out
