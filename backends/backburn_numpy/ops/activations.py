"""NumPy: activation functions, by kernels, as formulas in one pass, or by the contract's bodies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from backburn.ops.table import OPERATIONS
from backburn.programs.lowering import method_of
from backburn_numpy import compiled, tuning
from backburn_numpy.elementwise.blocks import elementwise, run_rows, run_small
from backburn_numpy.elementwise.fused import fuse, fuse_kernel
from backburn_numpy.elementwise.half_precision import cast_like, is_half, upcast_half
from backburn_numpy.elementwise.runs import run_on_runs
from backburn_numpy.implements import implements
from backburn_numpy.ops.elementwise import maximum, multiply
from backburn_numpy.runtime.memory import empty, memory_ordered

Array = Any


@implements("relu")
def relu(x: Array, /) -> Array:
    return maximum(x, 0)


@implements("softplus", takes_backend=True)
def softplus(k: Any, x: Array, /, beta: float = 1.0) -> Array:
    return _elementwise(k, "softplus", "softplus" if beta == 1 else "", x, beta=beta)


@implements("gelu", takes_backend=True)
def gelu(k: Any, x: Array, /, approximate: str = "none") -> Array:
    return _elementwise(k, "gelu", GELU.get(approximate, ""), x, approximate=approximate)


@implements("gelu_backward", takes_backend=True)
def gelu_backward(k: Any, grad: Array, x: Array, /, approximate: str) -> Array:
    kernel = f"{GELU[approximate]}_backward" if approximate in GELU else ""
    return _elementwise(k, "gelu_backward", kernel, grad, x, approximate=approximate)


#: The kernels for the forms of GELU.
GELU = {"none": "gelu", "tanh": "gelu_tanh"}


#: Zero and one, by the bytes of a float: NumPy takes twice as long with a Python number, which it has to convert.
ZERO: dict[int, Any] = {4: np.array(0, np.float32), 8: np.array(0, np.float64)}
ONE: dict[int, Any] = {4: np.array(1, np.float32), 8: np.array(1, np.float64)}


def _sigmoid(x: Array) -> Array:
    power = _one_plus_exp(x)
    return np.reciprocal(power, power)


def _silu(x: Array) -> Array:
    power = _one_plus_exp(x)
    return np.divide(x, power, power)


def _one_plus_exp(x: Array) -> Array:
    """``1 + exp(-x)``."""
    out = np.negative(x, out=...)
    np.exp(out, out)
    return np.add(out, ONE[x.itemsize], out)


def _sigmoid_backward(grad: Array, y: Array) -> Array:
    slope = np.subtract(ONE[y.itemsize], y, out=...)
    np.multiply(slope, y, slope)
    return np.multiply(slope, grad, slope)


def _sigmoid_slope(grad: Array, x: Array) -> Array:
    power = np.abs(x, out=...)
    np.negative(power, power)
    np.exp(power, power)
    above = np.add(power, ONE[grad.itemsize], out=...)
    np.multiply(above, above, above)
    np.divide(power, above, power)
    return np.multiply(power, grad, power)


def _tanh_slope(grad: Array, x: Array, y: Array) -> Array:
    width = np.cosh(x, out=...)
    slope = np.divide(grad, width, out=...)
    return np.divide(slope, width, slope)


def _tanh_backward(grad: Array, y: Array) -> Array:
    slope = np.square(y, out=...)
    np.subtract(ONE[y.itemsize], slope, slope)
    return np.multiply(slope, grad, slope)


def _relu_backward(grad: Array, y: Array) -> Array:
    zero = ZERO[y.itemsize]
    return np.where(np.greater(y, zero), grad, zero)


#: NumPy's functions for too few elements for a kernel (``tuning.MIN_ELEMENTS_FOR_KERNEL``), or without kernels:
#: recurrences call them.
NUMPY_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "sigmoid": _sigmoid, "silu": _silu, "sigmoid_backward": _sigmoid_backward, "tanh_backward": _tanh_backward,
    "relu_backward": _relu_backward, "sigmoid_slope": _sigmoid_slope, "tanh_slope": _tanh_slope,
}  # fmt: skip


def _function(name: str) -> Callable[..., Array]:
    """The operation of that name, which has a kernel of the same name."""
    function, without_kernels = NUMPY_FUNCTIONS.get(name), compiled.level() is None
    count = len(OPERATIONS[name].operands)

    def operation(k: Any, x: Array, y: Array = None, z: Array = None, /) -> Array:
        operands = (x,) if y is None else (x, y) if z is None else (x, y, z)
        if len(operands) != count:  # a kernel would read arrays that are not there
            raise TypeError(f"{name} takes {count} operands, not {len(operands)}")
        least = tuning.MIN_ELEMENTS_FOR_BODY if without_kernels else tuning.MIN_ELEMENTS_FOR_KERNEL.get(name, 1)
        if function is not None and x.size < least and x.itemsize > 2:
            return function(*operands)
        if y is not None and z is not None and y.strides == z.strides and 0 in y.strides and x.itemsize > 2:
            # A few values, broadcast.
            once = tuple(slice(None if stride else 1) for stride in y.strides)
            y, z = y[once], z[once]
            return multiply(x, _elementwise(k, name, name, np.ones(y.shape, y.dtype), y, z))
        return _elementwise(k, name, name, *operands)

    return operation


for _name in (*NUMPY_FUNCTIONS, "log_sigmoid", "silu_backward"):
    implements(_name, takes_backend=True)(_function(_name))


def _elementwise(k: Any, name: str, kernel: str, *operands: Array, **options: Any) -> Array:
    """The operation of that name: by the kernel, as a formula in one pass, or by its body."""
    first = operands[0]
    pays = kernel and first.size >= tuning.MIN_ELEMENTS_FOR_KERNEL.get(kernel, 1)
    if pays and (found := run_small(kernel, *operands)) is not None:
        return found
    if not first.flags.c_contiguous and (in_order := memory_ordered(*operands)) is not None:
        views, back = in_order
        return _elementwise(k, name, kernel, *views, **options).transpose(back)
    if is_half(first):
        if kernel and (found := fuse_kernel(kernel, *operands)) is not None:
            return found
        return cast_like(_elementwise(k, name, kernel, *map(upcast_half, operands), **options), first)
    if pays and (found := run_on_runs(kernel, *operands)) is not None:
        return found
    out = empty(first.shape, first.dtype)
    if kernel and compiled.are_alike(*operands) and run_rows(kernel, (out, *operands), first.size):
        return out
    if first.size < tuning.MIN_ELEMENTS_FOR_FORMULAS:
        return OPERATIONS[name].body(k, *operands, **options)
    if (found := fuse(method_of(name), *operands, *options.values())) is not None:
        return found
    return elementwise(partial(OPERATIONS[name].body, k, **options), *operands)
